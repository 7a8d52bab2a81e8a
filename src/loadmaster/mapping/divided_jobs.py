"""Maps jobs that may be divided into pieces on several cores, with a bound for all divisions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import MappingError
from loadmaster.cost.divided_jobs import DividedJobs, LeastWork
from loadmaster.mapping.answer import JobMapping
from loadmaster.mapping.bounds.group_bounds import GroupBound, divided_bound
from loadmaster.mapping.group import OBJECTIVES, Group
from loadmaster.mapping.map_jobs import map_jobs
from loadmaster.mapping.timeline import is_proven


@validate_arguments(MappingError)
def map_divided_jobs(
    jobs: DividedJobs,
    bandwidth: float,
    *,
    objective: str = "makespan",
    allocator: str = "demand",
    time_limit: float | None = None,
    **options: Any,
) -> JobMapping:
    """Choose a division of jobs into pieces, and map the pieces.

    Every division is mapped by a simple heuristic; the best of these and the undivided jobs are
    mapped with full effort, and the better mapping is returned. Other options are those of
    :func:`loadmaster.map_jobs`; a time limit is shared by both searches.

    Returns
    -------
    JobMapping
        The mapping, with pieces as jobs. Its bound holds for all divisions.

    Raises
    ------
    MappingError
        As :func:`loadmaster.map_jobs`.
    """
    mapped = partial(map_jobs, bandwidth=bandwidth, objective=objective, allocator=allocator)
    whole = jobs.ways[0]
    seeming = min(jobs.ways, key=lambda way: mapped(way.analysis, strategy="herald").value)
    chosen = [whole] if seeming is whole else [whole, seeming]
    options["time_limit"] = time_limit and time_limit / len(chosen)
    found = [mapped(way.analysis, **options) for way in chosen]
    best = min(found, key=lambda mapping: mapping.value)
    weights = OBJECTIVES[objective]
    bound = bound_of(jobs.least, bandwidth, allocator, weights)
    quickest = is_proven(best.makespan, bound.makespan)
    return replace(
        best,
        lower_bound=min(bound.score, best.value),
        limit=bound.limit if weights[0] else "least energy of every job, however it is divided",
        status="optimal" if weights == (1.0, 0.0) and quickest else "feasible",
        seconds=sum(mapping.seconds for mapping in found),
        cpu_seconds=sum(mapping.cpu_seconds for mapping in found),
        samples=sum(mapping.samples for mapping in found),
        interrupted=any(mapping.interrupted for mapping in found),
    )


def bound_of(
    least: LeastWork, bandwidth: float, allocator: str, weights: tuple[float, float]
) -> GroupBound:
    """Lower bound of all mappings of the jobs over all divisions."""
    runs = np.isfinite(least.latency)
    # A job without arithmetic still moves its bytes, at most at the whole bandwidth.
    share = bandwidth / least.latency.shape[1] if allocator == "even" else bandwidth
    moving = least.moved / share
    latency = np.where(runs, np.maximum(least.latency, moving), np.inf)
    busy = np.where(runs & (latency > 0), latency, 1.0)
    asking = runs & (allocator == "demand")
    demand = np.where(asking, least.moved / bandwidth / busy, 0.0)
    return divided_bound(Group(latency, demand, least.energy, weights), least.divides)
