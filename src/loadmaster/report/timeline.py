"""Time in reports: one unit for the whole plan, and amounts that change in steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import floor, log10

from loadmaster.planning.plan_records import LinkSegment, PlannedAllocation, PlanRecord


@dataclass(frozen=True)
class TimeUnit:
    """The unit of every time axis of a report."""

    name: str
    seconds: float
    digits: int

    def of(self, seconds: float) -> float:
        """Convert seconds to this unit."""
        return seconds / self.seconds

    def text(self, seconds: float) -> str:
        """Format seconds in this unit, with enough digits to distinguish neighbouring events."""
        return f"{self.of(seconds):.{self.digits}f} {self.name}"

    def span(self, start: float, end: float) -> str:
        """Format an interval in seconds, such as ``"1.20 to 1.40 ms"``."""
        return f"{self.of(start):.{self.digits}f} to {self.text(end)}"


def time_unit(makespan: float) -> TimeUnit:
    """Choose the largest unit in which the makespan, in seconds, is at least one."""
    scale, name = next(
        ((s, n) for s, n in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")) if makespan >= s), (1e-9, "ns")
    )
    whole_digits = floor(log10(max(1.0, makespan / scale))) + 1
    return TimeUnit(name, scale, max(0, 5 - whole_digits))


def last_instant(plan: PlanRecord) -> float:
    """Return the end of the last job or copy in the plan, in seconds."""
    ends = [job.end for job in plan.jobs] + [move.end for move in plan.transfers]
    return max([plan.metrics.makespan.value, *ends])


@dataclass(frozen=True)
class Steps:
    """An amount that changes in steps: it is ``values[i]`` from ``times[i]`` until ``times[i +
    1]``, in seconds."""

    times: Sequence[float]
    values: Sequence[float]

    def peak_instant(self) -> float:
        """The first instant at which the amount is largest."""
        return (
            self.times[max(range(len(self.values)), key=self.values.__getitem__)]
            if self.values
            else 0.0
        )

    def mean(self, end: float) -> float:
        """Average the amount over [0, end)."""
        if end <= 0:
            return 0.0
        until = [*self.times[1:], end]
        return (
            sum(v * (b - a) for v, a, b in zip(self.values, self.times, until, strict=False)) / end
        )


def bytes_alive(allocations: Iterable[PlannedAllocation]) -> Steps:
    """Sum the live bytes over time."""
    change: dict[float, int] = defaultdict(int)
    for allocation in allocations:
        change[allocation.start] += allocation.bytes
        change[allocation.end] -= allocation.bytes
    times, values, alive = sorted(change), [], 0
    for instant in times:
        alive += change[instant]
        values.append(alive)
    return Steps(times, values)


def alive_at(allocations: Iterable[PlannedAllocation], instant: float) -> list[PlannedAllocation]:
    """Return the allocations that are live at an instant, largest first."""
    live = [a for a in allocations if a.start <= instant < a.end]
    return sorted(live, key=lambda a: (-a.bytes, a.tensor, a.offset))


def outline(segments: Sequence[LinkSegment], height: Callable[[LinkSegment], float]) -> Steps:
    """Make steps of the height of a link's segments, zero between them."""
    times: list[float] = []
    values: list[float] = []
    for segment in segments:
        if times and times[-1] == segment.start:
            times.pop()
            values.pop()
        times += (segment.start, segment.end)
        values += (height(segment), 0.0)
    return Steps(times, values)
