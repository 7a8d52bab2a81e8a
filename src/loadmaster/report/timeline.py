"""Time in reports: units of time axes, and amounts over time in steps.

Steps are ``(start, end, amount)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import floor, log10

from loadmaster.core.units import TIMES, largest_unit

Steps = Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class TimeUnit:
    """The unit of a page's time axis."""

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
    """Return the largest unit in which a time is at least one."""
    scale, name = largest_unit(seconds, TIMES)
    whole_digits = floor(log10(max(1.0, seconds / scale))) + 1
    return TimeUnit(name, scale, max(0, 5 - whole_digits))


def total_over_time(parts: Iterable[tuple[float, float, float]]) -> Steps:
    """Return the sum over time of amounts that each hold over [start, end)."""
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
    """Return the first step with the largest amount; an empty step at 0 without steps."""
    return max(steps, key=lambda step: step[2], default=(0.0, 0.0, 0.0))


def outline(steps: Steps) -> list[tuple[float, float]]:
    """Return the instants at which an amount changes, with the new amounts; it is zero between
    steps."""
    points: list[tuple[float, float]] = []
    for start, end, amount in steps:
        if points and points[-1][0] == start:
            points.pop()
        points += [(start, amount), (end, 0.0)]
    return points


def first_free_lines(spans: Iterable[tuple[float, float]]) -> tuple[list[int], int]:
    """Assign each span, in the order of starts, the first line without overlap; return the lines
    and their number, at least 1."""
    ends: list[float] = []
    found = []
    for start, end in spans:
        line = next((at for at, last in enumerate(ends) if last <= start), len(ends))
        ends[line : line + 1] = [end]
        found.append(line)
    return found, max(1, len(ends))
