"""Searches groups one after another; claims are confirmed by exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.core.errors import MappingError
from loadmaster.core.progress import Deadline, Stopwatch, deferred_interrupts, no_progress, part_of
from loadmaster.cost.base import JobAnalysis
from loadmaster.mapping.answer import JobMapping, WarmStart
from loadmaster.mapping.bounds.group_bounds import GroupBound, group_bound
from loadmaster.mapping.group import (
    OBJECTIVES,
    Group,
    Queues,
    core_and_position,
    genome_of,
    group_of,
)
from loadmaster.mapping.group_search import Genome, MappingSearch, MappingStrategy
from loadmaster.mapping.map_options import MapOptions
from loadmaster.mapping.strategies import herald
from loadmaster.mapping.strategies.registry import STRATEGIES
from loadmaster.mapping.timeline import exact_makespan, is_proven, timeline

_PROOF = 0.15
"""Share of a group's time that is reserved for tightening the bound."""


@deferred_interrupts()
def map_in_groups(
    analysis: JobAnalysis,
    bandwidth: float,
    objective: str,
    weights: tuple[float, float],
    options: MapOptions,
) -> JobMapping:
    """Minimise makespan^a energy^b, with (a, b) = ``weights``, group by group; each search starts
    from the previous group's mapping. After Ctrl-C the remaining groups are mapped without a
    search."""
    chosen = STRATEGIES.find(options.strategy)
    if options.settings and not chosen.settings:
        able = " or ".join(name for name in STRATEGIES.names if STRATEGIES.find(name).settings)
        given = ", ".join(map(str, options.settings))
        raise MappingError(
            f"strategy {options.strategy!r} has no settings: leave {given} out, or choose {able}"
        )
    whole = group_of(analysis, bandwidth, options.allocator, weights)
    watch = Stopwatch()
    size = options.group_size or whole.jobs
    begins = range(0, whole.jobs, size)
    warm = _genome(options.warm_start, analysis)
    deadline = Deadline.within(options.time_limit)
    parts: list[MappedGroup] = []
    interrupted = False
    for number, begin in enumerate(begins):
        rows = slice(begin, begin + size)
        group = replace(
            whole,
            latency=whole.latency[rows],
            demand=whole.demand[rows],
            energy=None if whole.energy is None else whole.energy[rows],
        )
        genome = warm and (warm[0][rows], warm[1][rows])
        samples = options.samples
        if samples is None and options.time_limit is None:
            samples = options.budget.share(chosen.samples(group))
        within = deadline.part(1 / (len(begins) - number))
        stage = "mapping" + f" group {number + 1} of {len(begins)}" * (len(begins) > 1)
        search = MappingSearch(
            group,
            group_bound(group),
            seed=options.seed + number,
            threads=options.threads,
            samples=samples,
            deadline=within.part(1 - _PROOF),
            warm_start=genome,
            settings=options.settings or {},
            progress=part_of(options.progress or no_progress, stage, number, len(begins)),
        )
        if parts and genome is None:
            # The genes of the last group's jobs, repeated if it had fewer.
            core, priority = genome_of(parts[-1].queues, group.cores)
            search.warm_start = np.resize(core, group.jobs), np.resize(priority, group.jobs)
        first = genome and group.decode(genome[0][None], genome[1][None])
        strategy = herald.STRATEGY if interrupted else chosen
        interrupted |= run_search(search, strategy, within, first)
        parts.append(_mapped_group(group, search))
    return assemble(analysis, objective, options, parts, watch)


def run_search(
    search: MappingSearch,
    strategy: MappingStrategy,
    deadline: Deadline,
    first: Queues | None = None,
) -> bool:
    """Offer ``first``, run a strategy unless the search is over, and tighten the bound until
    ``deadline``; return whether Ctrl-C ended it. There is a mapping in any case."""
    stopped = False
    try:
        with deferred_interrupts() as interrupts:
            if first is not None:
                search.offer(first)
            with interrupts.breakable():
                if not search.done:
                    strategy.run(search)
                search.tighten(deadline)
    except KeyboardInterrupt:
        search.interrupted = stopped = True
    if search.queues is None:
        herald.run(search)
    return stopped


@dataclass(frozen=True, eq=False)
class MappedGroup:
    """A mapping of a group with figures of its search.

    ``quickest``: exact arithmetic confirms that the makespan is minimal.
    """

    group: Group
    queues: Queues
    start: Floats
    end: Floats
    makespan: float
    quickest: bool
    bound: GroupBound
    samples: int
    history: tuple[tuple[int, float], ...]
    interrupted: bool


def _mapped_group(group: Group, search: MappingSearch) -> MappedGroup:
    """Return the best mapping of a search with its timeline; its makespan is exact where that can
    be computed, and optimal where it equals the bound."""
    assert search.queues is not None
    exact = exact_makespan(group, search.queues)
    makespan = float(group.makespans(search.queues)[0] if exact is None else exact)
    return MappedGroup(
        group,
        search.queues,
        *timeline(group, search.queues),
        makespan,
        exact is not None and is_proven(exact, search.bound.makespan),
        search.bound,
        search.taken,
        tuple(search.history),
        search.interrupted,
    )


def assemble(
    analysis: JobAnalysis,
    objective: str,
    options: MapOptions,
    parts: Sequence[MappedGroup],
    watch: Stopwatch,
) -> JobMapping:
    """Concatenate the mappings of groups; ``watch`` was started when their search began."""
    wall, cpu = watch.read()
    count, group = len(parts), parts[0].group
    begin = np.cumsum([0.0, *(part.makespan for part in parts)])
    number = np.repeat(np.arange(count), [part.group.jobs for part in parts])
    placed = (core_and_position(part.queues, group.cores) for part in parts)
    cores, positions = zip(*placed, strict=True)
    makespan = float(begin[-1])
    energy = sum(part.group.energy_of(core) for part, core in zip(parts, cores, strict=True))
    # A mapping of a front was searched with mixed weights, but its value is that of ``weights``.
    weights = OBJECTIVES[objective]
    judged = replace(group, weights=weights)
    value = judged.score(makespan, energy)
    # Sums over groups are rounded, and each of the bounds may be reached.
    least = min(makespan, sum(part.bound.makespan for part in parts))
    bound = judged.score(least, sum(part.bound.energy for part in parts))
    quickest = all(part.quickest for part in parts)
    frugal = all(part.group.is_frugal(core) for part, core in zip(parts, cores, strict=True))
    optimal = (quickest or not weights[0]) and (frugal or not weights[1])
    limit = parts[0].bound.limit if weights[0] else "least energy of every job"
    return JobMapping(
        status="optimal" if optimal else "feasible",
        jobs=analysis.jobs,
        cores=analysis.cores,
        core=np.concatenate(cores),
        position=np.concatenate(positions),
        group=number,
        start=begin[number] + np.concatenate([part.start for part in parts]),
        end=begin[number] + np.concatenate([part.end for part in parts]),
        makespan=makespan,
        energy=None if analysis.energy is None else energy,
        flops=sum(analysis.flops.tolist()),
        objective=objective,
        value=value,
        lower_bound=min(bound, value),
        limit=limit + (f"; for jobs in these {count} groups, one after another" * (count > 1)),
        strategy=options.strategy,
        seed=options.seed,
        samples=sum(part.samples for part in parts),
        history=tuple(part.history for part in parts),
        seconds=wall,
        cpu_seconds=cpu,
        clock=analysis.clock,
        costs=analysis.provenance,
        interrupted=any(part.interrupted for part in parts),
    )


def _genome(start: WarmStart | None, analysis: JobAnalysis) -> Genome | None:
    """Convert a warm start to genes of these jobs: by name, or else by position."""
    if start is None:
        return None
    if not start.jobs:
        raise MappingError(f"{start.source}: has no jobs to start from")
    cores = {name: core for core, name in enumerate(analysis.cores)}
    known = {name: at for at, name in enumerate(start.jobs)}
    rows = [known.get(name, at % len(start.jobs)) for at, name in enumerate(analysis.jobs)]
    core = np.array([cores.get(start.core[row], row % len(cores)) for row in rows], dtype=np.int32)
    priority = np.array([start.place[row] for row in rows]) * 2.0**32
    return core, np.clip(priority, 0, 2.0**32 - 1).astype(np.uint32)
