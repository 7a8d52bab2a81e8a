"""Maps jobs that may be divided into pieces on several cores, with a bound that holds however they
are divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from loadmaster.core.effort import Effort
from loadmaster.core.progress import Progress
from loadmaster.cost.divided_jobs import DividedJobs, LeastWork
from loadmaster.mapping.answer import JobMapping
from loadmaster.mapping.bounds.group_bounds import GroupBound, divided_bound
from loadmaster.mapping.exact import is_proven
from loadmaster.mapping.group import OBJECTIVES, Group
from loadmaster.mapping.map_jobs import map_jobs


def map_divided_jobs(
    jobs: DividedJobs,
    bandwidth: float,
    *,
    objective: str = "makespan",
    strategy: str = "auto",
    allocator: str = "demand",
    samples: int | None = None,
    time_limit: float | None = None,
    settings: Mapping[str, float] | None = None,
    seed: int = 0,
    threads: int = 1,
    effort: Effort | str = Effort.NORMAL,
    progress: Progress | None = None,
) -> JobMapping:
    """Decide into which pieces jobs are divided, which core runs each piece, and in which order.

    Every way to divide is mapped by a simple heuristic, and with all effort the way that seems
    best, and whole jobs; the better mapping is returned. Options are those of
    :func:`loadmaster.map_jobs`; a time limit is shared by both searches.

    Returns
    -------
    JobMapping
        Of pieces as jobs. Its bound holds for every way to divide, not only for the one that was
        chosen.

    Raises
    ------
    MappingError
        As :func:`loadmaster.map_jobs`.
    """
    analyses = [way.analysis for way in jobs.ways]
    seeming = min(
        range(len(analyses)),
        key=lambda way: (
            map_jobs(
                analyses[way],
                bandwidth,
                objective=objective,
                strategy="herald",
                allocator=allocator,
            ).value
        ),
    )
    chosen = sorted({0, seeming})
    limit = None if time_limit is None else time_limit / len(chosen)
    found = [
        map_jobs(
            analyses[way],
            bandwidth,
            objective=objective,
            strategy=strategy,
            allocator=allocator,
            samples=samples,
            time_limit=limit,
            settings=settings,
            seed=seed,
            threads=threads,
            effort=effort,
            progress=progress,
        )
        for way in chosen
    ]
    best = min(found, key=lambda mapping: mapping.value)
    bound = bound_of(jobs.least, bandwidth, allocator, OBJECTIVES[objective])
    quickest = is_proven(Fraction(best.makespan), bound.makespan)
    return replace(
        best,
        lower_bound=min(bound.score, best.value),
        limit=bound.limit
        if OBJECTIVES[objective][0]
        else "least energy of every job, however it is divided",
        status="optimal" if OBJECTIVES[objective] == (1.0, 0.0) and quickest else "feasible",
        seconds=sum(mapping.seconds for mapping in found),
        cpu_seconds=sum(mapping.cpu_seconds for mapping in found),
        samples=sum(mapping.samples for mapping in found),
        interrupted=any(mapping.interrupted for mapping in found),
    )


def bound_of(
    least: LeastWork, bandwidth: float, allocator: str, weights: tuple[float, float]
) -> GroupBound:
    """What no mapping of the jobs can beat, however they are divided."""
    runs = np.isfinite(least.latency)
    # A job that takes no time by itself still moves its bytes: what it takes at the whole bandwidth
    # is its latency then.
    share = bandwidth / least.latency.shape[1] if allocator == "even" else bandwidth
    moving = least.moved / share
    latency = np.where(runs, np.maximum(np.where(runs, least.latency, 0.0), moving), np.inf)
    busy = np.where(runs & (latency > 0), latency, 1.0)
    demand = (
        np.where(runs, least.moved / bandwidth / busy, 0.0)
        if allocator == "demand"
        else np.zeros_like(latency)
    )
    return divided_bound(Group(latency, demand, least.energy, weights), least.divides)
