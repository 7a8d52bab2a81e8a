"""Orders in which the jobs and copies of a plan may run, whatever the times turn out to be."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import pairwise

import numpy as np

from loadmaster.planning.plan_records import PlannedJob, PlannedTransfer, PlanRecord


def in_order(
    plan: PlanRecord, number: int, generator: np.random.Generator
) -> Iterator[PlannedJob | PlannedTransfer]:
    """Jobs and copies, each after all that it waits for and after the job before it on its core.
    O(waits + tasks log tasks).

    In orders of odd number whoever may run does so at random. In the others one core after the
    other runs as far ahead as it may, each of them the first in some, and copies run at random
    between: that way few orders show that a wait is missing.

    Raises
    ------
    CycleError
        If some wait for one another.
    """
    tasks: dict[str, PlannedJob | PlannedTransfer] = {job.name: job for job in plan.jobs}
    tasks |= {copy.name: copy for copy in plan.transfers if not copy.job}
    waits = TopologicalSorter({name: task.after for name, task in tasks.items()})
    cores: dict[str, list[PlannedJob]] = {core.name: [] for core in plan.target.cores}
    for job in sorted(plan.jobs, key=lambda job: (job.start, job.end)):
        cores[job.core].append(job)
    rank = {name: float(generator.random()) for name in tasks}
    for place, own in enumerate(cores.values()):
        for before, job in pairwise(own):
            waits.add(job.name, before.name)
        if number % 2 == 0:
            ahead = ((place + number // 2) % len(cores) + 0.5) / len(cores)
            rank |= dict.fromkeys((job.name for job in own), ahead)
    waits.prepare()
    ready: list[tuple[float, str]] = []
    while waits.is_active():
        for name in waits.get_ready():
            heapq.heappush(ready, (rank[name], name))
        name = heapq.heappop(ready)[1]
        yield tasks[name]
        waits.done(name)
