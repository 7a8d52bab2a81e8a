"""Checks of the curves of link use: what they say has moved by any time lies between what has ended
and what has begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.units import PICOSECONDS, format_bytes, format_seconds
from loadmaster.planning.plan_records import LinkSegment
from loadmaster.planning.verify.columns import distinct, spans_of
from loadmaster.planning.verify.facts import Facts, span, when
from loadmaster.targets.hardware import Memory


def curves(facts: Facts) -> Iterator[str]:
    """Curves of link use are in order, never above what the link can carry, and agree with the
    transfers at all times. O(n log n)."""
    for name, segments in facts.plan.links.items():
        start, end = spans_of(segments)
        for number in np.flatnonzero(end[:-1] > start[1:]).tolist():
            one, two = segments[number : number + 2]
            yield (
                f"the curve of link {name} has {span(one.start, one.end)} before"
                f" {span(two.start, two.end)}"
            )
        for segment in segments:
            yield from _excess(facts.memories[name], segment)
        yield from _astray(facts, name)


def _excess(memory: Memory, segment: LinkSegment) -> Iterator[str]:
    """A load above the whole link, or one that does not move so many bytes."""
    if segment.load > 1 + 1e-9:
        yield (
            f"the curve of link {memory.name} has a load of {segment.load:.9g} over"
            f" {span(segment.start, segment.end)}"
        )
    slowest, fastest = sorted(
        (segment.load * memory.read_bandwidth, segment.load * memory.write_bandwidth)
    )
    if not slowest * (1 - 1e-6) <= segment.bytes_per_second <= fastest * (1 + 1e-6):
        moves = (
            f"{segment.bytes_per_second:.9g} bytes/s over {span(segment.start, segment.end)} with a"
            f" load of {segment.load:.9g}"
        )
        yield (
            f"the curve of link {memory.name} moves {moves}, that is between {slowest:.9g} and"
            f" {fastest:.9g} bytes/s"
        )


def _astray(facts: Facts, name: str) -> Iterator[str]:
    """The first time at which a curve has moved less than the transfers that have ended, or more
    than those that have begun: in bytes, or in seconds of the link's time.

    A millionth of all, and a picosecond's worth of every segment up to then, may go in rounding.
    """
    moves, place = facts.columns.transfers, facts.columns.place_number[name]
    memory, segments = facts.memories[name], facts.plan.links[name]
    over = (moves.source == place) | (moves.destination == place)
    bandwidth = np.where(moves.source[over] == place, memory.read_bandwidth, memory.write_bandwidth)
    rates = np.array([(each.bytes_per_second, each.load) for each in segments]).reshape(-1, 2)
    start, end = spans_of(segments)
    every = distinct(np.concatenate([moves.start[over], moves.end[over], start, end]))
    measures: tuple[tuple[Floats, Callable[[float], str]], ...] = (
        (moves.bytes[over].astype(np.float64), format_bytes),
        (moves.bytes[over] / bandwidth, format_seconds),
    )
    for (amount, shown), rate in zip(measures, rates.T, strict=True):
        area, rounding = _areas(rate, start, end, every)
        most, least = (_moved_by(every, side[over], amount) for side in (moves.start, moves.end))
        begun = np.append(0, most[:-1])
        slack = (most[-1] if len(most) else 0) * 1e-6
        astray = (area < least - slack - rounding) | (area > begun + slack + rounding)
        for at in np.flatnonzero(astray)[:1].tolist():
            yield (
                f"the curve of link {name} has moved {shown(area[at])} by {when(every[at])}, when"
                f" {shown(least[at])} of its transfers have ended and {shown(begun[at])} have begun"
            )


def _moved_by(every: Ints, times: Ints, size: Floats) -> Floats:
    """Sums of all that comes until each of the sorted instants."""
    order = np.argsort(times, kind="stable")
    total = np.append(0.0, np.cumsum(size[order], dtype=np.float64))
    return np.asarray(total[np.searchsorted(times[order], every, "right")])


def _areas(rate: Floats, start: Ints, end: Ints, every: Ints) -> tuple[Floats, Floats]:
    """For each of the sorted instants: what a curve in order, of so much a second, comes to by
    then, and what a picosecond of each segment is."""
    rate = rate / PICOSECONDS
    moved, rounding = (np.append(0.0, np.cumsum(each)) for each in ((end - start) * rate, rate))
    at = np.searchsorted(np.maximum.accumulate(end), every, "right")
    # Of the segment that has not ended, if it has begun, a part has moved.
    start, rate = np.append(start, np.iinfo(np.int64).max), np.append(rate, 0.0)
    begun = start[at] < every
    return moved[at] + np.where(begun, (every - start[at]) * rate[at], 0.0), rounding[
        at
    ] + np.where(begun, rate[at], 0.0)
