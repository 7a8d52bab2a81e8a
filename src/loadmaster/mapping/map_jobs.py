"""Map jobs that wait for nothing: one mapping, or a Pareto front of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.effort import Effort
from loadmaster.core.errors import MappingError
from loadmaster.core.progress import Progress, deferred_interrupts
from loadmaster.cost.base import JobAnalysis
from loadmaster.mapping.answer import JobMapping, WarmStart, warm_start_of
from loadmaster.mapping.map_options import MapOptions, weights_of
from loadmaster.mapping.search_groups import map_in_groups

_FRONT = 9
"""Number of mixtures of two objectives that are searched for a Pareto front."""


@validate_arguments(MappingError)
def map_jobs(
    analysis: JobAnalysis,
    bandwidth: float,
    *,
    objective: str = "makespan",
    strategy: str = "auto",
    allocator: str = "demand",
    group_size: int | None = None,
    samples: int | None = None,
    time_limit: float | None = None,
    warm_start: WarmStart | None = None,
    settings: Mapping[str, float] | None = None,
    seed: int = 0,
    threads: int = 1,
    effort: Effort | str = Effort.NORMAL,
    progress: Progress | None = None,
) -> JobMapping:
    """Decide which core runs each job and in which order, for jobs that depend on nothing but share
    one bandwidth (M3E, HPCA 2022).

    Parameters
    ----------
    analysis
        What every job costs on every core: see :mod:`loadmaster.cost.analyse`.
    bandwidth
        Bytes/s that all cores share; may be infinite.
    objective
        ``makespan``, ``throughput`` (the same mappings), ``energy``, or ``edp``, the energy-delay
        product.
    strategy
        A name that ``loadmaster.strategies("map")`` lists. Those by other libraries need the extra
        `search`.
    allocator
        ``demand``: jobs that together ask for S times the bandwidth all progress at 1/S. ``even``:
        every core has an equal share.
    group_size
        Cut the jobs into groups of so many, mapped and run one after another, each search started
        from the group before.
    samples
        Mappings that may be evaluated, in each group, as the paper counts; by default as many as
        ``effort`` leaves of the strategy's own number.
    time_limit
        Seconds; the best so far comes back. With it and without ``samples``, searches run until it
        strikes.
    warm_start
        An earlier mapping to start from: jobs by name, else by position.
    settings
        Of the strategy, if it has any, such as ``{"mutation": 0.1}``.
    seed, threads
        Same input and seed, same answer, on any number of threads.
    effort
        ``quick``, ``normal`` or ``thorough``, or budgets of your own.
    progress
        Called with a stage and the share done.

    Returns
    -------
    JobMapping
        Core and position of every job, makespan, energy, bound and status.

    Raises
    ------
    MappingError
        If costs are malformed, or an option is out of range or unknown.
    """
    weights = weights_of(objective)
    options = MapOptions(
        strategy,
        allocator,
        group_size,
        samples,
        time_limit,
        warm_start,
        settings,
        seed,
        threads,
        effort,
        progress,
    )
    return map_in_groups(analysis, bandwidth, objective, weights, options)


@validate_arguments(MappingError)
@deferred_interrupts()
def pareto_front(
    analysis: JobAnalysis,
    bandwidth: float,
    objectives: Sequence[str] = ("makespan", "energy"),
    **options: Any,
) -> tuple[JobMapping, ...]:
    """Return a Pareto front of mappings for two objectives, the best of the first objective first.

    Minimises makespan^a energy^b for several a and b from those of the first objective to those of
    the second, each started from the last; ``time_limit`` is for all of them together, the other
    ``options``, those of :func:`map_jobs`, are for each. ``value``, ``lower_bound``, ``gap`` and
    ``status`` of a mapping are those of its makespan; no mapping has less energy than the last of a
    front that ends in energy.

    Raises
    ------
    MappingError
        As :func:`map_jobs`, and if the two objectives are the same.
    """
    if len(objectives) != 2:
        raise MappingError(f"a Pareto front is of two objectives, not of {len(objectives)}")
    first, second = (np.array(weights_of(objective)) for objective in objectives)
    if (first == second).all():
        raise MappingError(
            f"objectives {objectives[0]} and {objectives[1]} are best at the same mappings: give"
            " two that are not"
        )
    each = validate_arguments(MappingError)(MapOptions)(**options)
    if each.time_limit is not None:
        each = replace(each, time_limit=each.time_limit / _FRONT)
    found: list[JobMapping] = []
    for share in np.linspace(0.0, 1.0, _FRONT):
        time_weight, energy_weight = ((1 - share) * first + share * second).tolist()
        found.append(
            map_in_groups(analysis, bandwidth, "makespan", (time_weight, energy_weight), each)
        )
        each = replace(each, warm_start=warm_start_of(found[-1].rows()))
    front: list[JobMapping] = []
    for mapping in sorted(found, key=lambda mapping: _values(mapping, objectives)):
        if not front or _values(mapping, objectives)[1] < _values(front[-1], objectives)[1]:
            front.append(mapping)
    return tuple(front)


def _values(mapping: JobMapping, objectives: Sequence[str]) -> tuple[float, float]:
    """Return a mapping's values of two objectives."""
    first, second = (
        mapping.makespan**time * (mapping.energy or 0.0) ** energy
        for time, energy in map(weights_of, objectives)
    )
    return first, second
