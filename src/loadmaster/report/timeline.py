"""Time in reports: the unit of a time axis, and amounts that change in steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import floor, log10

from loadmaster.core.units import format_bytes
from loadmaster.report.text import SIZES, TIMES, largest_unit
from loadmaster.report.view import Curve


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


@dataclass(frozen=True)
class Steps:
    """An amount that changes in steps: it is ``values[i]`` from ``times[i]`` until ``times[i +
    1]``, in seconds."""

    times: Sequence[float]
    values: Sequence[float]

    def peak_instant(self) -> float:
        """The first instant at which the amount is largest."""
        first = max(range(len(self.values)), key=self.values.__getitem__, default=None)
        return 0.0 if first is None else self.times[first]

    def triples(self, end: float) -> list[tuple[float, float, float]]:
        """Return start, end and value of every step; the last step ends at ``end``."""
        until = [*self.times[1:], end]
        return list(zip(self.times, until, self.values, strict=False))

    def mean(self, end: float) -> float:
        """Average the amount over [0, end)."""
        return sum(v * (b - a) for a, b, v in self.triples(end)) / end if end > 0 else 0.0


def total_over_time(parts: Iterable[tuple[float, float, float]]) -> Steps:
    """Sum amounts that each hold over [start, end)."""
    change: dict[float, float] = defaultdict(int)
    for start, end, amount in parts:
        change[start] += amount
        change[end] -= amount
    times = sorted(change)
    return Steps(times, list(accumulate(change[instant] for instant in times)))


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


def outline(parts: Iterable[tuple[float, float, float]]) -> Steps:
    """Make steps of ``(start, end, value)``, zero between them."""
    times: list[float] = []
    values: list[float] = []
    for start, end, value in parts:
        if times and times[-1] == start:
            times.pop()
            values.pop()
        times += (start, end)
        values += (value, 0.0)
    return Steps(times, values)


def curve_of_bytes(
    what: str,
    steps: Sequence[tuple[float, float, float]],
    facts: Callable[[int], dict[str, str]],
    along: str,
    limit: int | None = None,
    remark: str = "",
) -> Curve:
    """Draw bytes over a sequence, in the unit that suits them; ``facts`` are the rows of the
    tooltip of a step, and ``limit`` is the budget."""
    scale, unit = largest_unit(max(size for *_, size in steps), SIZES)

    def tip(items: Sequence[int]) -> dict[str, str]:
        fullest = max(items, key=lambda step: steps[step][2])
        return {"name": format_bytes(int(steps[fullest][2]))} | facts(fullest)

    drawn = [(begin, end, size / scale) for begin, end, size in steps]
    name = "" if limit is None else f"budget {format_bytes(limit)}"
    top = None if limit is None else limit / scale
    return Curve("", f"{what} ({unit})", drawn, top, name, tip, along, remark)
