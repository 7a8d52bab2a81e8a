"""Orders in which the jobs and copies of a plan may run, whatever the times turn out to be."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from loadmaster.core.errors import PlanError
from loadmaster.planning.plan_records import PlannedJob, PlannedTransfer, PlanRecord


def in_order(
    plan: PlanRecord, number: int, generator: np.random.Generator
) -> Iterator[PlannedJob | PlannedTransfer]:
    """Jobs and copies, each after all that it waits for and after the job before it on its core.
    O(waits log tasks).

    Of those that may run, the one of the highest rank does: ranks are random, or without a
    generator the planned starts, so that what is planned early is as late as the plan allows.

    Raises
    ------
    PlanError
        If some wait for one another.
    """
    tasks: dict[str, PlannedJob | PlannedTransfer] = {job.name: job for job in plan.jobs}
    tasks |= {copy.name: copy for copy in plan.transfers if not copy.job}
    waits = {name: set(task.after) for name, task in tasks.items()}
    cores: dict[str, list[str]] = defaultdict(list)
    for job in sorted(plan.jobs, key=lambda job: (job.start, job.end)):
        cores[job.core].append(job.name)
    for own in cores.values():
        for before, name in pairwise(own):
            waits[name].add(before)
    following: dict[str, list[str]] = defaultdict(list)
    for name, own_waits in waits.items():
        for before in own_waits:
            following[before].append(name)
    names = [core.name for core in plan.target.cores]
    place = {name: (k + number // 2) % len(names) for k, name in enumerate(names)}
    rank = {
        name: float(generator.random())
        if number % 2 or isinstance(task, PlannedTransfer)
        else (place[task.core] + 0.5) / len(names)
        for name, task in tasks.items()
    }
    ready = [(rank[name], name) for name, own_waits in waits.items() if not own_waits]
    heapq.heapify(ready)
    while ready:
        name = heapq.heappop(ready)[1]
        yield tasks.pop(name)
        for each in following[name]:
            waits[each].remove(name)
            if not waits[each]:
                heapq.heappush(ready, (rank[each], each))
    if tasks:
        raise PlanError(
            f"{len(tasks)} jobs and copies wait for one another, such as {min(tasks)!r}"
        )
