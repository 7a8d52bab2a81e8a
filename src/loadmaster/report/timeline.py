"""Time in reports: the unit of a time axis, and amounts that change in steps.

Steps are ``(start, end, amount)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import floor, log10

from loadmaster.report.text import TIMES, largest_unit

Steps = Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class TimeUnit:
    """The unit of every time axis of a page."""

    name: str
    seconds: float
    digits: int

    def of(self, seconds: float) -> float:
        """Convert seconds to this unit."""
        return seconds / self.seconds

    def text(self, seconds: float) -> str:
        """Format seconds in this unit, with enough digits to distinguish neighbouring events."""
        return f"{self.of(seconds):.{self.digits}f} {self.name}".rstrip()

    def span(self, start: float, end: float) -> str:
        """Format an interval in seconds, such as ``"1.20 to 1.40 ms"``."""
        return f"{self.of(start):.{self.digits}f} to {self.text(end)}"


def time_unit(seconds: float) -> TimeUnit:
    """Choose the largest unit in which a time is at least one."""
    scale, name = largest_unit(seconds, TIMES)
    whole_digits = floor(log10(max(1.0, seconds / scale))) + 1
    return TimeUnit(name, scale, max(0, 5 - whole_digits))


def total_over_time(parts: Iterable[tuple[float, float, float]]) -> Steps:
    """Sum amounts that each hold over [start, end)."""
    change: dict[float, float] = defaultdict(int)
    for start, end, amount in parts:
        change[start] += amount
        change[end] -= amount
    times = sorted(change)
    totals = accumulate(change[instant] for instant in times)
    return [
        (start, end, total) for (start, end), total in zip(pairwise(times), totals, strict=False)
    ]


def largest(steps: Steps) -> tuple[float, float, float]:
    """Return the first step with the largest amount; nothing at 0 if there are none."""
    return max(steps, key=lambda step: step[2], default=(0.0, 0.0, 0.0))


def outline(steps: Steps) -> list[tuple[float, float]]:
    """Return the instants at which an amount changes, and to what; it is zero between steps."""
    points: list[tuple[float, float]] = []
    for start, end, amount in steps:
        if points and points[-1][0] == start:
            points.pop()
        points += [(start, amount), (end, 0.0)]
    return points


def first_free_lines(
    intervals: Iterable[tuple[int, float, float]],
) -> tuple[list[int], dict[int, int]]:
    """Give each interval, by lane and start, the first line of its lane where it overlaps no other;
    also return the lines of each lane."""
    ends: dict[int, list[float]] = defaultdict(list)
    found = []
    for lane, start, end in intervals:
        mine = ends[lane]
        line = next((at for at, last in enumerate(mine) if last <= start), len(mine))
        mine[line : line + 1] = [end]
        found.append(line)
    return found, {lane: len(lines) for lane, lines in ends.items()}
