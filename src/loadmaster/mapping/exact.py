"""The makespan of a mapping in exact arithmetic: what a claim of optimality rests on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from loadmaster.core.units import PICOSECONDS
from loadmaster.mapping.group import Group, Queues
from loadmaster.mapping.timeline import waiting_jobs

_MOST_STEPS = 100_000
"""Jobs times cores up to which fractions are quick enough, about a second."""
_MOST_TWO_CLOCKS = 200
"""Jobs up to which fractions stay small enough where some jobs ask for no bandwidth and others
do."""


def exact_makespan(group: Group, queues: Queues) -> Fraction | None:
    """Seconds that one row of queues takes, without rounding; None where that would take too
    long."""
    used = np.where(group.allowed, group.demand, 0.0) > 0
    two_clocks = bool(used.any()) and not group.every_job_uses_bandwidth
    if group.jobs * group.cores > _MOST_STEPS or (two_clocks and group.jobs > _MOST_TWO_CLOCKS):
        return None
    waiting = waiting_jobs(group, queues)
    zero = Fraction(0)
    # While running jobs ask for S > 1, the clock of those that use the bus runs at 1 / S.
    bus_clock = time = zero
    ends: dict[int, tuple[Fraction, Fraction]] = {}

    def start(core: int) -> None:
        job = next(waiting[core], None)
        if job is None:
            ends.pop(core, None)
            return
        demand = Fraction(float(group.demand[job, core]))
        ends[core] = (
            (bus_clock if demand else time) + Fraction(float(group.latency[job, core])),
            demand,
        )

    for core in range(group.cores):
        start(core)
    while ends:
        slow = max(Fraction(1), sum((demand for _, demand in ends.values()), zero))
        core, left = min(
            (
                (core, (end - bus_clock) * slow if demand else end - time)
                for core, (end, demand) in ends.items()
            ),
            key=lambda pair: pair[1],
        )
        time += left
        bus_clock += left / slow
        start(core)
    return time


def is_proven(makespan: Fraction, bound: float) -> bool:
    """Whether a makespan is less than a picosecond, and less than a billionth of itself, above a
    bound."""
    return makespan - Fraction(bound) <= min(Fraction(1, PICOSECONDS), makespan / 10**9)
