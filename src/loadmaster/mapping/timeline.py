"""When every job of a mapped group starts and ends, and in exact arithmetic, what a claim of
optimality rests on."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.core.units import PICOSECONDS
from loadmaster.mapping.group import Group, Queues

_MOST_STEPS = 100_000
"""Most jobs x cores for arithmetic with fractions, about a second."""
_MOST_TWO_CLOCKS = 200
"""Most jobs if some demand bandwidth and others do not, because fractions then grow."""


def timeline(group: Group, queues: Queues) -> tuple[Floats, Floats]:
    """Start and end of every job in seconds, for one row of queues; O(jobs x log cores), more where
    some jobs ask for no bandwidth."""
    begin, end = simulate(group, queues, float)
    return np.array(begin), np.array(end)


def simulate(
    group: Group, queues: Queues, number: Callable[[float], Any]
) -> tuple[list[Any], list[Any]]:
    """Start and end of every job in the arithmetic of a type of numbers, ``float`` or
    ``Fraction``."""
    ends = np.flatnonzero(queues[0] == group.jobs)[:-1] + 1
    waiting = [iter(part[:-1].tolist()) for part in np.split(queues[0], ends)]
    begin = [number(0.0)] * group.jobs
    end = begin.copy()
    # Jobs that use the bus end on its clock, which slows when it is oversubscribed; the others end
    # in seconds.
    bus_clock = time = load = number(0.0)
    on_bus: list[tuple[Any, int, Any, int]] = []
    off_bus: list[tuple[Any, int, Any, int]] = []

    def start(core: int) -> Any:
        """Start the next job of a core and return its bandwidth demand; 0 if none is left."""
        job = next(waiting[core], None)
        if job is None:
            return 0
        begin[job] = time
        demand = number(float(group.demand[job, core]))
        clock, running = (bus_clock, on_bus) if demand else (time, off_bus)
        ends_at = clock + number(float(group.latency[job, core]))
        heapq.heappush(running, (ends_at, core, demand, job))
        return demand

    for core in range(group.cores):
        load += start(core)
    while on_bus or off_bus:
        slow = max(number(1.0), load)
        until_bus = max(0, on_bus[0][0] - bus_clock) * slow if on_bus else inf
        until_off = max(0, off_bus[0][0] - time) if off_bus else inf
        step = min(until_bus, until_off)
        time += step
        if until_bus <= until_off:
            bus_clock, core, _, job = heapq.heappop(on_bus)
        else:
            bus_clock += step / slow
            _, core, _, job = heapq.heappop(off_bus)
        end[job] = time
        start(core)
        # Summed afresh, so that nothing builds up.
        load = sum(demand for _, _, demand, _ in on_bus)
    return begin, end


def exact_makespan(group: Group, queues: Queues) -> Fraction | None:
    """Exact makespan of one row of queues in seconds; None if computing it would take too long."""
    two_clocks = bool(group.usable_demand.any()) and not group.every_job_uses_bandwidth
    if group.jobs * group.cores > _MOST_STEPS or (two_clocks and group.jobs > _MOST_TWO_CLOCKS):
        return None
    makespan: Fraction = max(simulate(group, queues, Fraction)[1])
    return makespan


def is_proven(makespan: Fraction | float, bound: float) -> bool:
    """Whether a makespan exceeds a bound by less than a picosecond and less than a billionth of
    itself."""
    exact = Fraction(makespan)
    return exact - Fraction(bound) <= min(Fraction(1, PICOSECONDS), exact / 10**9)
