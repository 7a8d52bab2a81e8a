"""When every task starts and ends, given its resource, its order and where its operands are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.edges import edges_of
from loadmaster.core.errors import PlanError
from loadmaster.core.task_graph import task_graph
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.job_times import JobTimes, whole_picoseconds
from loadmaster.planning.decisions import Placement, Schedule, Timeline
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import TensorInstance, Workload


def replay(
    workload: Workload,
    times: JobTimes,
    target: Target,
    schedule: Schedule,
    placement: Placement,
    after: Sequence[Sequence[int]] = (),
    release: Ints | None = None,
) -> Timeline:
    """Simulate a schedule and a placement; ``after`` lists what else each task waits for,
    ``release`` the picosecond before which it must.

    A task starts when its resource is free, the tasks before it on that resource have started, and
    all it waits for has ended. Tasks that run together share each link as :mod:`loadmaster.mapping`
    describes. Copies run one at a time, in the order given. O(tasks x cores x links) time.
    """
    jobs = len(workload.jobs)
    chosen = np.arange(jobs), schedule.core
    links = len(target.memories)
    duration = times.duration[chosen]
    demand = np.concatenate([times.demand[chosen], times.rate[chosen]], axis=1)
    resource = schedule.core
    order = schedule.order
    edges = [workload.edges, edges_of(after)]
    if placement.copies:
        copy_duration, copy_demand = _copy_times(workload.tensors, target, placement)
        copy_index = jobs + np.arange(len(placement.copies))
        duration, demand = np.append(duration, copy_duration), np.concatenate([demand, copy_demand])
        resource = np.append(resource, np.full(len(copy_index), len(target.cores), dtype=np.int32))
        order = np.append(order, copy_index)
        nothing: list[tuple[int, ...]] = [()] * jobs
        edges.append(edges_of([*nothing, *(copy.after for copy in placement.copies)]))
        edges.append(edges_of([*nothing, *(copy.before for copy in placement.copies)])[:, ::-1])
    tasks = len(duration)
    if release is not None and release.any():
        # A clock: a task for every time at which something is released, one after the other.
        ticks = np.unique(release[release > 0])
        held = np.flatnonzero(release)
        edges.append(np.stack([tasks + np.searchsorted(ticks, release[held]), held], axis=1))
        duration = np.append(duration, np.diff(ticks, prepend=0))
        demand = np.concatenate([demand, np.zeros((len(ticks), demand.shape[1]))])
        resource = np.append(resource, np.full(len(ticks), len(target.cores) + 1, dtype=np.int32))
        order = np.append(order, tasks + np.arange(len(ticks)))
    found = task_graph(np.concatenate(edges), len(duration)).replay(
        duration=duration,
        demand=np.ascontiguousarray(demand),
        links=links,
        resource=resource,
        resources=len(target.cores) + 2,
        order=order,
    )
    if found.completed < len(duration):
        stuck = int(np.flatnonzero(found.end < 0)[0])
        raise PlanError(
            f"the order of jobs contradicts their dependencies: task {stuck} can never start"
        )
    return Timeline(
        found.start[:tasks],
        found.end[:tasks],
        found.time,
        found.used[:, :links],
        found.used[:, links:],
    )


def _copy_times(
    tensors: Sequence[TensorInstance], target: Target, placement: Placement
) -> tuple[Ints, Floats]:
    """Picoseconds, link demands and rates of every copy, at the copy engine's asynchronous
    bandwidth."""
    # As `number_copies` in src/native/joint/admission.cpp; tests/test_twins.py holds the two
    # together.
    assert target.copy is not None
    assert target.fast is not None
    rows = []
    for copy in placement.copies:
        size = tensors[copy.tensor].bytes
        if copy.to_fast:
            engine, main, fast = (
                target.copy.asynchronous_to_fast,
                target.main.read_bandwidth,
                target.fast.write_bandwidth,
            )
        else:
            engine, main, fast = (
                target.copy.asynchronous_to_main,
                target.main.write_bandwidth,
                target.fast.read_bandwidth,
            )
        rows.append((size / min(engine, main, fast), size / main, size / fast, size, size))
    table = np.array(rows)
    duration = whole_picoseconds(table[:, :1])[:, 0]
    return duration, table[:, 1:] / (duration[:, None] / PICOSECONDS)
