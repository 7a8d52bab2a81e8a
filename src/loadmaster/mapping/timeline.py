"""When every job of a mapped group starts and ends."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.mapping.group import Group, Queues


def waiting_jobs(group: Group, queues: Queues) -> list[Iterator[int]]:
    """Iterators over the jobs of each core, for one row of queues."""
    ends = np.flatnonzero(queues[0] == group.jobs)[:-1] + 1
    return [iter(part[:-1].tolist()) for part in np.split(queues[0], ends)]


def timeline(group: Group, queues: Queues) -> tuple[Floats, Floats]:
    """Start and end of every job in seconds, for one row of queues; O(jobs x log cores), more where
    some jobs ask for no bandwidth."""
    waiting = waiting_jobs(group, queues)
    begin, end = np.zeros(group.jobs), np.zeros(group.jobs)
    # Jobs that use the bus end on its clock, which slows when it is oversubscribed; the others end
    # in seconds.
    bus_clock = time = load = 0.0
    on_bus: list[tuple[float, int, int]] = []
    off_bus: list[tuple[float, int, int]] = []

    def start(core: int) -> float:
        job = next(waiting[core], None)
        if job is None:
            return 0.0
        begin[job] = time
        demand = float(group.demand[job, core])
        clock, running = (bus_clock, on_bus) if demand else (time, off_bus)
        heapq.heappush(running, (clock + float(group.latency[job, core]), core, job))
        return demand

    for core in range(group.cores):
        load += start(core)
    while on_bus or off_bus:
        slow = max(1.0, load)
        until_bus = max(0.0, on_bus[0][0] - bus_clock) * slow if on_bus else np.inf
        until_off = max(0.0, off_bus[0][0] - time) if off_bus else np.inf
        step = min(until_bus, until_off)
        time += step
        if until_bus <= until_off:
            bus_clock, core, job = heapq.heappop(on_bus)
        else:
            bus_clock += step / slow
            _, core, job = heapq.heappop(off_bus)
        end[job] = time
        start(core)
        # Summed afresh, so that nothing builds up.
        load = sum(float(group.demand[running, where]) for _, where, running in on_bus)
    return begin, end
