"""Search group after group, and claim only what exact arithmetic confirms."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.deadline import Deadline
from loadmaster.core.errors import MappingError
from loadmaster.core.progress import no_progress, part_of
from loadmaster.cost.job_analysis import JobAnalysis
from loadmaster.mapping.answer import JobMapping, WarmStart
from loadmaster.mapping.bounds.group_bounds import group_bound
from loadmaster.mapping.exact import exact_makespan, is_proven
from loadmaster.mapping.group import Group, core_and_position, genome_of, group_of
from loadmaster.mapping.group_search import Genome, Search
from loadmaster.mapping.map_options import MapOptions
from loadmaster.mapping.strategies import herald
from loadmaster.mapping.strategies.registry import STRATEGIES
from loadmaster.mapping.timeline import timeline

_PROOF = 0.15
"""Share of a group's time that is kept for proving how good the mapping is."""


def map_in_groups(
    analysis: JobAnalysis,
    bandwidth: float,
    objective: str,
    weights: tuple[float, float],
    options: MapOptions,
) -> JobMapping:
    """Search one group after another, each started from the one before, for the least makespan^a
    energy^b, (a, b) being the ``weights``."""
    chosen = STRATEGIES.find(options.strategy)
    if options.settings and not chosen.settings:
        able = " or ".join(name for name in STRATEGIES.names if STRATEGIES.find(name).settings)
        raise MappingError(
            f"strategy {options.strategy!r} has no settings: leave {', '.join(options.settings)}"
            f" out, or choose {able}"
        )
    whole = group_of(analysis, bandwidth, options.allocator, weights)
    wall, cpu = time.monotonic(), time.process_time()
    size = options.group_size or whole.jobs
    begins = list(range(0, whole.jobs, size))
    warm, deadline = _genome(options.warm_start, analysis), Deadline.within(options.time_limit)
    parts: list[_Part] = []
    interrupted = False
    for number, begin in enumerate(begins):
        rows = slice(begin, begin + size)
        group = replace(
            whole,
            latency=whole.latency[rows],
            demand=whole.demand[rows],
            energy=None if whole.energy is None else whole.energy[rows],
        )
        samples = options.samples
        if samples is None and options.time_limit is None:
            samples = options.effort.share(chosen.samples(group))
        if interrupted:
            samples = 1
        within = deadline.part(1 / (len(begins) - number))
        search = Search(
            group,
            group_bound(group),
            seed=options.seed + number,
            threads=options.threads,
            samples=samples,
            deadline=within.part(1 - _PROOF),
            warm_start=None if warm is None else (warm[0][rows], warm[1][rows]),
            settings=options.settings,
            progress=part_of(
                options.progress or no_progress, _stage(number, len(begins)), number, len(begins)
            ),
        )
        if parts and warm is None:
            search.warm_start = _from_last(parts[-1], group)
        try:
            (herald.STRATEGY if interrupted else chosen).run(search)
            search.prove(within)
        except KeyboardInterrupt:
            search.interrupted = interrupted = True
        if search.queues is None:
            herald.run(search)
        parts.append(_Part(group, search))
    return _assemble(
        analysis,
        objective,
        weights,
        options,
        parts,
        time.monotonic() - wall,
        time.process_time() - cpu,
    )


class _Part:
    """A mapped group: its queues, and their makespan, exact if that can be had."""

    def __init__(self, group: Group, search: Search) -> None:
        assert search.queues is not None
        self.group, self.search, self.queues = group, search, search.queues
        self.core, self.position = core_and_position(self.queues, group.cores)
        exact = exact_makespan(group, self.queues)
        self.makespan = float(group.makespans(self.queues)[0]) if exact is None else float(exact)
        self.energy = group.energy_of(self.core)
        self.quickest = exact is not None and is_proven(exact, search.bound.makespan)
        frugal = is_frugal(group, self.core)
        self.optimal = (self.quickest or not group.weights[0]) and (frugal or not group.weights[1])


def is_frugal(group: Group, core: NDArray[np.integer]) -> bool:
    """Whether every job runs where it takes the least energy."""
    if group.energy is None:
        return False
    least = np.where(group.allowed, group.energy, np.inf).min(axis=1)
    return bool((group.energy[np.arange(group.jobs), core] <= least).all())


def _assemble(
    analysis: JobAnalysis,
    objective: str,
    weights: tuple[float, float],
    options: MapOptions,
    parts: list[_Part],
    seconds: float,
    cpu_seconds: float,
) -> JobMapping:
    """Put the groups one after another."""
    begin, starts, ends = 0.0, [], []
    for part in parts:
        start, end = timeline(part.group, part.queues)
        starts.append(begin + start)
        ends.append(begin + end)
        begin += part.makespan
    energy = sum(part.energy for part in parts)
    flops = int(analysis.flops.sum())
    least = (
        sum(part.search.bound.makespan for part in parts),
        sum(part.search.bound.energy for part in parts),
    )
    score = parts[0].group.score
    # A mapping of a front was searched for a mixture of objectives, and is judged by its makespan.
    if objective in ("makespan", "throughput"):
        value, bound, proven = begin, least[0], all(part.quickest for part in parts)
    else:
        value, bound, proven = (
            score(begin, energy),
            score(*least),
            all(part.optimal for part in parts),
        )
    # Sums over groups are rounded, and each of the bounds may be reached.
    bound = min(bound, value)
    return JobMapping(
        status="optimal" if proven else "feasible",
        jobs=analysis.jobs,
        cores=analysis.cores,
        core=np.concatenate([part.core for part in parts]),
        position=np.concatenate([part.position for part in parts]),
        group=np.repeat(np.arange(len(parts)), [part.group.jobs for part in parts]),
        start=np.concatenate(starts),
        end=np.concatenate(ends),
        makespan=begin,
        energy=None if analysis.energy is None else energy,
        throughput=flops / begin if flops and begin > 0 else None,
        objective=objective,
        value=value,
        lower_bound=bound,
        limit=parts[0].search.bound.limit
        + (
            "" if len(parts) == 1 else f"; for jobs in these {len(parts)} groups, one after another"
        ),
        strategy=options.strategy,
        seed=options.seed,
        samples=sum(part.search.taken for part in parts),
        history=tuple(tuple(part.search.history) for part in parts),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        clock=analysis.clock,
        costs=analysis.provenance,
        interrupted=any(part.search.interrupted for part in parts),
    )


def _stage(number: int, groups: int) -> str:
    return "mapping" if groups == 1 else f"mapping group {number + 1} of {groups}"


def _from_last(last: _Part, group: Group) -> Genome:
    """What the group before learned: its first jobs' genes for ours, over and over if it had
    fewer."""
    core, priority = genome_of(last.queues, group.cores)
    return np.resize(core, group.jobs), np.resize(priority, group.jobs)


def _genome(start: WarmStart | None, analysis: JobAnalysis) -> Genome | None:
    """A warm start as genes of our jobs: those of the same name, else those at the same
    position."""
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
