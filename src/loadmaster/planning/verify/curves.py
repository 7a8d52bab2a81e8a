"""Checks of the curves of link use: what they say has moved by any time lies between what has ended and what has begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from loadmaster.core.units import PICOSECONDS, format_bytes
from loadmaster.planning.plan import LinkSegment
from loadmaster.planning.verify.facts import Facts, ps, span, when
from loadmaster.targets.hardware import Memory


def curves(facts: Facts) -> Iterator[str]:
    """Curves of link use are in order, never above what the link can carry, and agree with the transfers at all times. O(n log n)."""
    for name, segments in facts.plan.links.items():
        for one, two in pairwise(segments):
            if ps(one.end) > ps(two.start):
                yield f"the curve of link {name} has {span(one.start, one.end)} before {span(two.start, two.end)}"
        for segment in segments:
            yield from _excess(facts.memories[name], segment)
        yield from _astray(facts, name)


def _excess(memory: Memory, segment: LinkSegment) -> Iterator[str]:
    """A load above the whole link, or one that does not move so many bytes."""
    where = f"over {span(segment.start, segment.end)}"
    if segment.load > 1 + 1e-9:
        yield f"the curve of link {memory.name} has a load of {segment.load:.9g} {where}"
    slowest, fastest = (segment.load * pick(memory.read_bandwidth, memory.write_bandwidth) for pick in (min, max))
    if not slowest * (1 - 1e-6) <= segment.bytes_per_second <= fastest * (1 + 1e-6):
        moves = f"{segment.bytes_per_second:.9g} bytes/s {where} with a load of {segment.load:.9g}"
        yield f"the curve of link {memory.name} moves {moves}, that is between {slowest:.9g} and {fastest:.9g} bytes/s"


def _astray(facts: Facts, name: str) -> Iterator[str]:
    """The first time at which a curve has moved less than the transfers that have ended, or more than those that have begun.

    A millionth of all bytes, and a picosecond's worth of every segment up to then, may go in rounding.
    """
    begun: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    for transfer in facts.plan.transfers:
        if name in (transfer.source, transfer.destination):
            begun[ps(transfer.start)] += transfer.bytes
            ended[ps(transfer.end)] += transfer.bytes
    slack = sum(begun.values()) * 1e-6
    most = least = 0
    for time, area, rounding in _areas(facts.plan.links[name], begun.keys() | ended.keys()):
        least += ended[time]
        if not least - slack - rounding <= area <= most + slack + rounding:
            due = f"{format_bytes(least)} of its transfers have ended and {format_bytes(most)} have begun"
            yield f"the curve of link {name} has moved {format_bytes(area)} by {when(time)}, when {due}"
            return
        most += begun[time]


def _areas(segments: tuple[LinkSegment, ...], times: set[int]) -> Iterator[tuple[int, float, float]]:
    """For every time at which something begins or ends: bytes that a curve has moved by then, and what a picosecond of each segment is."""
    pieces = [(ps(segment.start), ps(segment.end), segment.bytes_per_second) for segment in segments]
    area, rounding, at = 0.0, 0.0, 0
    for time in sorted(times | {start for start, _, _ in pieces} | {end for _, end, _ in pieces}):
        while at < len(pieces) and pieces[at][1] <= time:
            area += (pieces[at][1] - pieces[at][0]) * pieces[at][2] / PICOSECONDS
            rounding += pieces[at][2] / PICOSECONDS
            at += 1
        begun = at < len(pieces) and pieces[at][0] < time
        partial = (time - pieces[at][0]) * pieces[at][2] / PICOSECONDS if begun else 0.0
        yield time, area + partial, rounding + (pieces[at][2] / PICOSECONDS if begun else 0.0)
