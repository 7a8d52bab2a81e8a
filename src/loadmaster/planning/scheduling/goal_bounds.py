"""What no plan can go below, whatever it is made for: energy, the latency of each network, and a
makespan that waits for releases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.core.units import FEMTOJOULES
from loadmaster.cost.analytical.energy import EnergyRates
from loadmaster.cost.base import JobTable
from loadmaster.planning.decisions import Bounds, MakespanBound
from loadmaster.planning.goal import Goal
from loadmaster.planning.scheduling.makespan_bound import makespan_bound
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Job, TensorInstance, Workload

BoundOf = Callable[[Sequence[Job], Sequence[TensorInstance], JobTable, Target], MakespanBound]
"""Bounds the makespan of jobs."""


def goal_bounds(
    workload: Workload,
    table: JobTable,
    target: Target,
    rates: EnergyRates,
    goal: Goal,
    bound_of: BoundOf = makespan_bound,
) -> Bounds:
    """Bounds of makespan, energy and latencies.

    The jobs of one network are a problem of their own that no other network makes easier, and so
    are those of its first mini-batch, for which nothing can be done before time 0: the longest
    latency is at least the bound of the latter, and that of the former less the last release. After
    the last mini-batch's release its own jobs are to be done, for which weights may be there
    already.
    """
    whole = bound_of(workload.jobs, workload.tensors, table, target)
    latency = {}
    for info in workload.networks:
        mine = [b for b, network in enumerate(goal.network) if network == info.name]
        first, last = int(goal.first[mine[0]]), int(goal.first[mine[-1] + 1])
        everything = len(workload.networks) == 1
        alone = (
            whole if everything else _part(workload, table, target, first, last, bound_of)
        ).picoseconds
        if released := int(goal.release[mine[-1]]):
            alone = max(
                alone - released,
                _part(
                    workload, table, target, first, int(goal.first[mine[1]]), bound_of
                ).picoseconds,
            )
            rest = _part(
                workload,
                table,
                target,
                int(goal.first[mine[-1]]),
                last,
                bound_of,
                weights_are_there=True,
            )
            limit, least = (
                f"release of the last mini-batch of {info.name}",
                released + rest.picoseconds,
            )
            terms = (*whole.terms, (limit, least))
            later = least > whole.picoseconds
            whole = (
                MakespanBound(least, limit, whole.main_bytes, terms)
                if later
                else replace(whole, terms=terms)
            )
        latency[info.name] = alone
    in_parts = bound_of is not makespan_bound
    return Bounds(
        whole,
        energy_bound(workload.jobs, workload.tensors, table, target, rates, in_parts=in_parts)
        + rates.static(whole.picoseconds),
        latency,
    )


def energy_bound(
    jobs: Sequence[Job],
    tensors: Sequence[TensorInstance],
    table: JobTable,
    target: Target,
    rates: EnergyRates,
    *,
    in_parts: bool = False,
) -> int:
    """Femtojoules that all jobs take at least, in integers: each on its most frugal core, every
    operand in the memory that takes less.

    Beyond that, what exists from the start is in main memory: it is streamed from there whenever it
    is read, or copied once. Outputs go to main memory, and so does what is larger than the fast
    one. ``in_parts`` says that jobs may be cut, and tensors with them: each part may be streamed or
    copied by itself, however large the whole is.
    """
    fast = target.fast
    room = 0 if fast is None else fast.capacity
    size = np.array([tensor.bytes for tensor in tensors], dtype=np.int64)
    given = np.array([tensor.producer < 0 for tensor in tensors], dtype=np.bool_)
    output = np.array([tensor.is_output for tensor in tensors], dtype=np.bool_)
    least = min(rates.memories) if room else rates.memories[0]
    extra = rates.memories[0] - least
    t, write = table.operand_tensor, table.operand_write
    once = np.array([o.bytes for job in jobs for o in (*job.reads, *job.writes)], dtype=np.int64)
    to_main = (write & output[t]) | (~given & (size > room))[t]
    if not target.main.in_place:
        # Results are copied out, operands in: nothing is streamed.
        to_main, least, extra = np.zeros_like(to_main), rates.memories[1], 0
    per_byte = (
        np.array(rates.buffers, dtype=object)[None, :]
        + least
        + np.where(to_main, extra, 0).astype(object)[:, None]
    )
    joules_of = np.array(
        [[round(joules * FEMTOJOULES) for joules in row] for row in table.energy.tolist()],
        dtype=object,
    )
    np.add.at(joules_of, table.operand_job, table.moved.astype(object) * per_byte)
    total = int(joules_of.min(axis=1).sum()) if len(jobs) else 0
    moved = table.moved.min(axis=1) if len(jobs) else np.zeros(0, dtype=np.int64)
    reads = np.flatnonzero(~write & (moved > 0))
    of, readers = t[reads], np.bincount(t[reads], minlength=len(tensors))
    streamed = moved[reads].astype(object) * extra
    copied = sum(rates.memories)
    if in_parts:
        # A byte is streamed to each of its readers, as often as each reads it, or copied once for
        # all of them: a read takes least where all readers share one copy.
        shared = np.minimum(once, moved)[reads].astype(object) * copied // readers[of]
        least_read = np.minimum(streamed, shared) if target.main.in_place and room else streamed
        least_read = least_read if target.main.in_place else shared
        total += int(least_read[given[of]].sum())
    else:
        by_tensor = np.zeros(len(tensors), dtype=object)
        np.add.at(by_tensor, of, streamed)
        copy = size.astype(object) * copied
        least_read = np.where(size <= room, np.minimum(by_tensor, copy), by_tensor)
        least_read = least_read if target.main.in_place else copy
        total += int(least_read[given & (readers > 0)].sum())
    if not target.main.in_place:
        total += int(size[output & ~given].sum()) * copied
    return total


def _part(
    workload: Workload,
    table: JobTable,
    target: Target,
    first: int,
    last: int,
    bound_of: BoundOf,
    weights_are_there: bool = False,
) -> MakespanBound:
    """The bound of jobs ``first`` up to ``last`` alone, which depend on none before them."""
    rows = slice(*np.searchsorted(table.operand_job, [first, last]).tolist())
    touched, tensor = np.unique(table.operand_tensor[rows], return_inverse=True)
    part = JobTable(
        table.compute[first:last],
        table.operand_job[rows] - first,
        tensor.astype(np.int64),
        table.operand_write[rows],
        table.moved[rows],
        table.tile[rows],
        table.energy[first:last],
    )
    jobs = [
        replace(job, after=tuple(before - first for before in job.after))
        for job in workload.jobs[first:last]
    ]
    tensors = [workload.tensors[number] for number in touched.tolist()]
    if weights_are_there:
        tensors = [
            replace(tensor, bytes=0) if tensor.kind == "weight" else tensor for tensor in tensors
        ]
    return bound_of(jobs, tensors, part, target)
