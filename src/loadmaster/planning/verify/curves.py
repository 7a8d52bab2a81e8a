"""Checks of the curves of link use: what they say has moved by any time lies between what has ended and what has begun."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from itertools import pairwise

from loadmaster.core.units import PICOSECONDS, format_bytes
from loadmaster.planning.plan_records import LinkSegment
from loadmaster.planning.verify.facts import Facts, span, spans_of, when
from loadmaster.targets.hardware import Memory


def curves(facts: Facts) -> Iterator[str]:
    """Curves of link use are in order, never above what the link can carry, and agree with the transfers at all times. O(n log n)."""
    for name, segments in facts.plan.links.items():
        for ((_, end), one), ((start, _), two) in pairwise(zip(spans_of(segments), segments, strict=True)):
            if end > start:
                yield f"the curve of link {name} has {span(one.start, one.end)} before {span(two.start, two.end)}"
        for segment in segments:
            yield from _excess(facts.memories[name], segment)
        yield from _astray(facts, name)


def _excess(memory: Memory, segment: LinkSegment) -> Iterator[str]:
    """A load above the whole link, or one that does not move so many bytes."""
    if segment.load > 1 + 1e-9:
        yield f"the curve of link {memory.name} has a load of {segment.load:.9g} over {span(segment.start, segment.end)}"
    slowest, fastest = sorted((segment.load * memory.read_bandwidth, segment.load * memory.write_bandwidth))
    if not slowest * (1 - 1e-6) <= segment.bytes_per_second <= fastest * (1 + 1e-6):
        moves = f"{segment.bytes_per_second:.9g} bytes/s over {span(segment.start, segment.end)} with a load of {segment.load:.9g}"
        yield f"the curve of link {memory.name} moves {moves}, that is between {slowest:.9g} and {fastest:.9g} bytes/s"


def _astray(facts: Facts, name: str) -> Iterator[str]:
    """The first time at which a curve has moved less than the transfers that have ended, or more than those that have begun.

    A millionth of all bytes, and a picosecond's worth of every segment up to then, may go in rounding.
    """
    begun: dict[int, int] = defaultdict(int)
    ended: dict[int, int] = defaultdict(int)
    for transfer, (start, end) in zip(facts.plan.transfers, facts.moves, strict=True):
        if name in (transfer.source, transfer.destination):
            begun[start] += transfer.bytes
            ended[end] += transfer.bytes
    slack = sum(begun.values()) * 1e-6
    most = least = 0
    for time, area, rounding in _areas(facts.plan.links[name], begun.keys() | ended.keys()):
        least += ended.get(time, 0)
        if not least - slack - rounding <= area <= most + slack + rounding:
            due = f"{format_bytes(least)} of its transfers have ended and {format_bytes(most)} have begun"
            yield f"the curve of link {name} has moved {format_bytes(area)} by {when(time)}, when {due}"
            return
        most += begun.get(time, 0)


def _areas(segments: tuple[LinkSegment, ...], times: Set[int]) -> Iterator[tuple[int, float, float]]:
    """For every time at which something begins or ends: bytes that a curve has moved by then, and what a picosecond of each segment is."""
    pieces = [(*span, segment.bytes_per_second) for span, segment in zip(spans_of(segments), segments, strict=True)]
    area, rounding, at = 0.0, 0.0, 0
    for time in sorted(times | {start for start, _, _ in pieces} | {end for _, end, _ in pieces}):
        while at < len(pieces) and pieces[at][1] <= time:
            area += (pieces[at][1] - pieces[at][0]) * pieces[at][2] / PICOSECONDS
            rounding += pieces[at][2] / PICOSECONDS
            at += 1
        begun = at < len(pieces) and pieces[at][0] < time
        partial = (time - pieces[at][0]) * pieces[at][2] / PICOSECONDS if begun else 0.0
        yield time, area + partial, rounding + (pieces[at][2] / PICOSECONDS if begun else 0.0)
