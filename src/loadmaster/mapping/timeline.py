"""When every job of a mapped group starts and ends."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.mapping.group import Group, Queues


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
