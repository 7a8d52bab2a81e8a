"""Map jobs that wait for others, or that come and are due at times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.arrays import Floats
from loadmaster.core.deadline import Deadline
from loadmaster.core.effort import Effort
from loadmaster.core.errors import MappingError
from loadmaster.core.progress import Progress, no_progress
from loadmaster.cost.job_analysis import JobAnalysis
from loadmaster.mapping.answer import JobMapping
from loadmaster.mapping.bounds.group_bounds import GroupBound, group_bound, tightened
from loadmaster.mapping.dependent_jobs import Order, OrderedSchedule, longest_path, schedule
from loadmaster.mapping.exact import is_proven
from loadmaster.mapping.group import OBJECTIVES, Group, group_of, queues_of
from loadmaster.mapping.map_options import MapOptions, require_objective
from loadmaster.mapping.search_groups import is_frugal


def map_dependent_jobs(
    analysis: JobAnalysis,
    bandwidth: float,
    after: Sequence[Sequence[int]],
    *,
    release: Sequence[float] | Floats | None = None,
    due: Sequence[float] | Floats | None = None,
    weight: Sequence[float] | Floats | None = None,
    objective: str = "makespan",
    strategy: str = "auto",
    allocator: str = "demand",
    samples: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    effort: Effort | str = Effort.NORMAL,
    progress: Progress | None = None,
) -> JobMapping:
    """Map jobs that wait for others: job ``j`` starts when all of ``after[j]``, indices below its
    own, have ended.

    ``release`` and ``due`` are seconds before which a job may not start and by which it should have
    ended; how late jobs are together, each times its ``weight``, comes before the objective. Found
    by list scheduling and local search (:mod:`loadmaster.mapping.dependent_jobs`), the same for
    ``auto`` and ``list``; other options are those of :func:`map_jobs`.

    Raises
    ------
    MappingError
        As :func:`map_jobs`, and for what only jobs without dependencies can have.
    """
    require_objective(objective)
    if strategy not in ("auto", "list"):
        raise MappingError(f"strategy {strategy!r}: jobs with dependencies are mapped with auto")
    budget = Effort.of(effort, MappingError)
    options = MapOptions(
        strategy, allocator, None, samples, time_limit, None, {}, seed, 1, budget, progress
    )
    group = group_of(analysis, bandwidth, allocator, OBJECTIVES[objective])
    order = _order(after, group.jobs, release, due, weight)
    wall, cpu = time.monotonic(), time.process_time()
    if samples is None and time_limit is None:
        samples = budget.share(max(100, min(5_000, 500_000 // group.jobs)))
    deadline = Deadline.within(time_limit)
    found = schedule(
        group,
        order,
        samples=samples,
        seed=seed,
        deadline=deadline,
        progress=progress or no_progress,
    )
    mapping = _scheduled(
        analysis, objective, options, group, found, _waiting_bound(group, order, found, deadline)
    )
    return replace(mapping, seconds=time.monotonic() - wall, cpu_seconds=time.process_time() - cpu)


def _order(
    after: Sequence[Sequence[int]],
    count: int,
    release: Sequence[float] | NDArray[np.float64] | None,
    due: Sequence[float] | NDArray[np.float64] | None,
    weight: Sequence[float] | NDArray[np.float64] | None,
) -> Order:
    """What holds jobs back, checked."""
    if len(after) != count or any(
        not 0 <= before < job for job, befores in enumerate(after) for before in befores
    ):
        raise MappingError(
            "after: give for every job the indices of earlier jobs that it waits for"
        )
    given = ((release, 0.0, "release"), (due, np.inf, "due"), (weight, 1.0, "weight"))
    return Order(after, *(_per_job(values, count, usual, name) for values, usual, name in given))


def _per_job(
    values: Sequence[float] | Floats | None, count: int, usual: float, name: str
) -> Floats:
    result = np.full(count, usual) if values is None else np.array(values, dtype=np.float64)
    if (
        result.shape != (count,)
        or not (result >= 0).all()
        or (name != "due" and not np.isfinite(result).all())
    ):
        raise MappingError(f"{name}: give a number of at least 0 for every job")
    return result


def _waiting_bound(
    group: Group, order: Order, found: OrderedSchedule, deadline: Deadline
) -> GroupBound:
    """What any schedule of jobs that wait takes: no less than one of jobs that do not, and than the
    longest chain."""
    free = group_bound(group)
    if found.value[2] > free.makespan:
        by_start = np.lexsort((np.arange(group.jobs), found.start))
        free = tightened(group, free, queues_of(found.core, by_start, group.cores), deadline)
    chain = longest_path(group, order)
    if chain <= free.makespan:
        return free
    return replace(
        free, makespan=chain, score=group.score(chain, free.energy), limit="longest chain of jobs"
    )


def _scheduled(
    analysis: JobAnalysis,
    objective: str,
    options: MapOptions,
    group: Group,
    found: OrderedSchedule,
    bound: GroupBound,
) -> JobMapping:
    """A schedule of jobs that wait, as a mapping; the time that it took is not known here."""
    makespan = found.value[2]
    quickest, frugal = is_proven(Fraction(makespan), bound.makespan), is_frugal(group, found.core)
    by_start = np.lexsort((np.arange(group.jobs), found.start, found.core))
    position = np.empty(group.jobs, dtype=np.int64)
    position[by_start] = np.arange(group.jobs) - np.searchsorted(
        found.core[by_start], found.core[by_start]
    )
    flops = int(analysis.flops.sum())
    return JobMapping(
        status="optimal"
        if (quickest or not group.weights[0]) and (frugal or not group.weights[1])
        else "feasible",
        jobs=analysis.jobs,
        cores=analysis.cores,
        core=found.core.astype(np.int64),
        position=position,
        group=np.zeros(group.jobs, dtype=np.int64),
        start=found.start,
        end=found.end,
        makespan=makespan,
        energy=None if analysis.energy is None else group.energy_of(found.core),
        throughput=flops / makespan if flops and makespan > 0 else None,
        objective=objective,
        value=found.value[1],
        lower_bound=min(group.score(min(bound.makespan, makespan), bound.energy), found.value[1]),
        limit=bound.limit if group.weights[0] else "least energy of every job",
        strategy=options.strategy,
        seed=options.seed,
        samples=found.samples,
        history=(found.history,),
        seconds=0.0,
        cpu_seconds=0.0,
        clock=analysis.clock,
        costs=analysis.provenance,
        interrupted=found.interrupted,
    )
