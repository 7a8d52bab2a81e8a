"""Map jobs: check them, let a strategy search group by group, and claim only what exact arithmetic confirms."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.arguments import require_known, takes
from loadmaster.core.arrays import Floats
from loadmaster.core.deadline import Deadline
from loadmaster.core.errors import MappingError
from loadmaster.core.progress import Progress, no_progress, part_of
from loadmaster.cost.job_analysis import JobAnalysis
from loadmaster.mapping.answer import JobMapping, WarmStart, warm_start_of
from loadmaster.mapping.bounds.group_bounds import GroupBound, group_bound, tightened
from loadmaster.mapping.dependent_jobs import Order, OrderedSchedule, longest_path, schedule
from loadmaster.mapping.exact import exact_makespan, is_proven
from loadmaster.mapping.group import OBJECTIVES, Group, core_and_position, genome_of, group_of, queues_of
from loadmaster.mapping.group_search import Genome, Search
from loadmaster.mapping.strategies import herald
from loadmaster.mapping.strategies.registry import STRATEGIES
from loadmaster.mapping.timeline import timeline

_FRONT = 9
"""Mixtures of two objectives that are searched for a Pareto front."""


@takes(
    MappingError,
    analysis=JobAnalysis,
    bandwidth=Real,
    objective=str,
    strategy=str,
    allocator=str,
    group_size=Integral,
    samples=Integral,
    warm_start=WarmStart,
    settings=Mapping,
    threads=Integral,
    progress=Callable,
    time_limit=Real,
    seed=Integral,
)
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
    progress: Progress | None = None,
) -> JobMapping:
    """Decide which core runs each job and in which order, for jobs that depend on nothing but share one bandwidth (M3E, HPCA 2022).

    Parameters
    ----------
    analysis
        What every job costs on every core: see :mod:`loadmaster.cost.analyse`.
    bandwidth
        Bytes/s that all cores share; may be infinite.
    objective
        ``makespan``, ``throughput`` (the same mappings), ``energy``, or ``edp``, the energy-delay product.
    strategy
        A name that ``loadmaster.strategies("map")`` lists. Those by other libraries need the extra `search`.
    allocator
        ``demand``: jobs that together ask for S times the bandwidth all progress at 1/S. ``even``: every core has an equal share.
    group_size
        Cut the jobs into groups of so many, mapped and run one after another, each search started from the group before.
    samples
        Mappings that may be evaluated, in each group; each strategy has a default of its own.
    time_limit
        Seconds; the best so far comes back. With it and without ``samples``, searches run until it strikes.
    warm_start
        An earlier mapping to start from: jobs by name, else by position.
    settings
        Of the strategy, if it has any, such as ``{"mutation": 0.1}``.
    seed, threads
        Same input and seed, same answer, on any number of threads.
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
    _require_objective(objective)
    options = _Options(strategy, allocator, group_size, samples, time_limit, warm_start, settings or {}, seed, threads, progress)
    return _map(analysis, bandwidth, objective, OBJECTIVES[objective], options)


@takes(
    MappingError,
    analysis=JobAnalysis,
    bandwidth=Real,
    objectives=Sequence,
    strategy=str,
    allocator=str,
    group_size=Integral,
    samples=Integral,
    warm_start=WarmStart,
    settings=Mapping,
    threads=Integral,
    progress=Callable,
    time_limit=Real,
    seed=Integral,
)
def pareto_front(
    analysis: JobAnalysis,
    bandwidth: float,
    objectives: tuple[str, str] = ("makespan", "energy"),
    *,
    strategy: str = "auto",
    allocator: str = "demand",
    group_size: int | None = None,
    samples: int | None = None,
    time_limit: float | None = None,
    warm_start: WarmStart | None = None,
    settings: Mapping[str, float] | None = None,
    seed: int = 0,
    threads: int = 1,
    progress: Progress | None = None,
) -> tuple[JobMapping, ...]:
    """Mappings of which none is better than another in both objectives, the best of the first one first.

    Minimises makespan^a energy^b for several a and b from those of the first objective to those of the second, each started from
    the last; ``time_limit`` is for all of them together, the other options of :func:`map_jobs` are for each. ``value``, ``lower_bound``,
    ``gap`` and ``status`` of a mapping are those of its makespan; no mapping has less energy than the last of a front that ends in energy.

    Raises
    ------
    MappingError
        As :func:`map_jobs`, and if the two objectives are the same.
    """
    for objective in objectives:
        _require_objective(objective)
    first, second = (np.array(OBJECTIVES[objective]) for objective in objectives)
    if (first == second).all():
        raise MappingError(f"objectives {objectives[0]} and {objectives[1]} are best at the same mappings: give two that are not")
    limit = None if time_limit is None else time_limit / _FRONT
    found: list[JobMapping] = []
    for share in np.linspace(0.0, 1.0, _FRONT):
        time_weight, energy_weight = ((1 - share) * first + share * second).tolist()
        start = warm_start_of(found[-1]) if found else warm_start
        options = _Options(strategy, allocator, group_size, samples, limit, start, settings or {}, seed, threads, progress)
        found.append(_map(analysis, bandwidth, "makespan", (time_weight, energy_weight), options))
    front: list[JobMapping] = []
    for mapping in sorted(found, key=lambda each: _values(each, objectives)):
        if not front or _values(mapping, objectives)[1] < _values(front[-1], objectives)[1]:
            front.append(mapping)
    return tuple(front)


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
    progress: Progress | None = None,
) -> JobMapping:
    """Map jobs that wait for others: job ``j`` starts when all of ``after[j]``, indices below its own, have ended.

    ``release`` and ``due`` are seconds before which a job may not start and by which it should have ended; how late jobs are together,
    each times its ``weight``, comes before the objective. Found by list scheduling and local search
    (:mod:`loadmaster.mapping.dependent_jobs`), the same for ``auto`` and ``list``; other options are those of :func:`map_jobs`.

    Raises
    ------
    MappingError
        As :func:`map_jobs`, and for what only jobs without dependencies can have.
    """
    _require_objective(objective)
    if strategy not in ("auto", "list"):
        raise MappingError(f"strategy {strategy!r}: jobs with dependencies are mapped with auto")
    options = _Options(strategy, allocator, None, samples, time_limit, None, {}, seed, 1, progress)
    group = group_of(analysis, bandwidth, allocator, OBJECTIVES[objective])
    order = _order(after, group.jobs, release, due, weight)
    wall, cpu = time.monotonic(), time.process_time()
    if samples is None and time_limit is None:
        samples = max(100, min(5_000, 500_000 // group.jobs))
    deadline = Deadline.within(time_limit)
    found = schedule(group, order, samples=samples, seed=seed, deadline=deadline, progress=progress or no_progress)
    mapping = _scheduled(analysis, objective, options, group, found, _waiting_bound(group, order, found, deadline))
    return replace(mapping, seconds=time.monotonic() - wall, cpu_seconds=time.process_time() - cpu)


def _order(
    after: Sequence[Sequence[int]],
    count: int,
    release: Sequence[float] | NDArray[np.float64] | None,
    due: Sequence[float] | NDArray[np.float64] | None,
    weight: Sequence[float] | NDArray[np.float64] | None,
) -> Order:
    """What holds jobs back, checked."""
    if len(after) != count or any(not 0 <= before < job for job, befores in enumerate(after) for before in befores):
        raise MappingError("after: give for every job the indices of earlier jobs that it waits for")
    given = ((release, 0.0, "release"), (due, np.inf, "due"), (weight, 1.0, "weight"))
    return Order(after, *(_per_job(values, count, usual, name) for values, usual, name in given))


def _waiting_bound(group: Group, order: Order, found: OrderedSchedule, deadline: Deadline) -> GroupBound:
    """What any schedule of jobs that wait takes: no less than one of jobs that do not, and than the longest chain."""
    free = group_bound(group)
    if found.value[2] > free.makespan:
        by_start = np.lexsort((np.arange(group.jobs), found.start))
        free = tightened(group, free, queues_of(found.core, by_start, group.cores), deadline)
    chain = longest_path(group, order)
    if chain <= free.makespan:
        return free
    return replace(free, makespan=chain, score=group.score(chain, free.energy), limit="longest chain of jobs")


def _scheduled(
    analysis: JobAnalysis, objective: str, options: _Options, group: Group, found: OrderedSchedule, bound: GroupBound
) -> JobMapping:
    """A schedule of jobs that wait, as a mapping; the time that it took is not known here."""
    makespan = found.value[2]
    quickest, frugal = is_proven(Fraction(makespan), bound.makespan), _is_frugal(group, found.core)
    by_start = np.lexsort((np.arange(group.jobs), found.start, found.core))
    position = np.empty(group.jobs, dtype=np.int64)
    position[by_start] = np.arange(group.jobs) - np.searchsorted(found.core[by_start], found.core[by_start])
    flops = int(analysis.flops.sum())
    return JobMapping(
        status="optimal" if (quickest or not group.weights[0]) and (frugal or not group.weights[1]) else "feasible",
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


def _per_job(values: Sequence[float] | Floats | None, count: int, usual: float, name: str) -> Floats:
    result = np.full(count, usual) if values is None else np.array(values, dtype=np.float64)
    if result.shape != (count,) or not (result >= 0).all() or (name != "due" and not np.isfinite(result).all()):
        raise MappingError(f"{name}: give a number of at least 0 for every job")
    return result


@dataclass(frozen=True)
class _Options:
    strategy: str
    allocator: str
    group_size: int | None
    samples: int | None
    time_limit: float | None
    warm_start: WarmStart | None
    settings: Mapping[str, float]
    seed: int
    threads: int
    progress: Progress | None

    def __post_init__(self) -> None:
        for name, value in (("group size", self.group_size), ("samples", self.samples), ("threads", self.threads)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
                raise MappingError(f"{name} {value!r}: give a whole number of at least 1")
        if self.time_limit is not None and not self.time_limit >= 0:
            raise MappingError(f"time limit {self.time_limit!r}: give a number of seconds of at least 0")
        if self.seed < 0:
            raise MappingError(f"seed {self.seed}: give a whole number of at least 0")


def _require_objective(objective: str) -> None:
    require_known("objective", objective, OBJECTIVES, MappingError)


def _values(mapping: JobMapping, objectives: tuple[str, str]) -> tuple[float, float]:
    first, second = (
        mapping.makespan**time * (mapping.energy or 0.0) ** energy for time, energy in (OBJECTIVES[name] for name in objectives)
    )
    return first, second


def _map(analysis: JobAnalysis, bandwidth: float, objective: str, weights: tuple[float, float], options: _Options) -> JobMapping:
    chosen = STRATEGIES.find(options.strategy)
    if options.settings and not chosen.settings:
        able = " or ".join(name for name in STRATEGIES.names if STRATEGIES.find(name).settings)
        raise MappingError(f"strategy {options.strategy!r} has no settings: leave {', '.join(options.settings)} out, or choose {able}")
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
            whole, latency=whole.latency[rows], demand=whole.demand[rows], energy=None if whole.energy is None else whole.energy[rows]
        )
        samples = options.samples
        if samples is None and options.time_limit is None:
            samples = chosen.samples(group)
        if interrupted:
            samples = 1
        search = Search(
            group,
            group_bound(group),
            seed=options.seed + number,
            threads=options.threads,
            samples=samples,
            deadline=deadline.part(1 / (len(begins) - number)),
            warm_start=None if warm is None else (warm[0][rows], warm[1][rows]),
            settings=options.settings,
            progress=part_of(options.progress or no_progress, _stage(number, len(begins)), number, len(begins)),
        )
        if parts and warm is None:
            search.warm_start = _from_last(parts[-1], group)
        try:
            (herald.STRATEGY if interrupted else chosen).run(search)
            search.tighten()
        except KeyboardInterrupt:
            search.interrupted = interrupted = True
        if search.queues is None:
            herald.run(search)
        parts.append(_Part(group, search))
    return _assemble(analysis, objective, weights, options, parts, time.monotonic() - wall, time.process_time() - cpu)


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
        frugal = _is_frugal(group, self.core)
        self.optimal = (self.quickest or not group.weights[0]) and (frugal or not group.weights[1])


def _is_frugal(group: Group, core: NDArray[np.integer]) -> bool:
    """Whether every job runs where it takes the least energy."""
    if group.energy is None:
        return False
    least = np.where(group.allowed, group.energy, np.inf).min(axis=1)
    return bool((group.energy[np.arange(group.jobs), core] <= least).all())


def _assemble(
    analysis: JobAnalysis,
    objective: str,
    weights: tuple[float, float],
    options: _Options,
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
    least = sum(part.search.bound.makespan for part in parts), sum(part.search.bound.energy for part in parts)
    score = parts[0].group.score
    # A mapping of a front was searched for a mixture of objectives, and is judged by its makespan.
    if objective in ("makespan", "throughput"):
        value, bound, proven = begin, least[0], all(part.quickest for part in parts)
    else:
        value, bound, proven = score(begin, energy), score(*least), all(part.optimal for part in parts)
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
        limit=parts[0].search.bound.limit,
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
    """What the group before learned: its first jobs' genes for ours, over and over if it had fewer."""
    core, priority = genome_of(last.queues, group.cores)
    return np.resize(core, group.jobs), np.resize(priority, group.jobs)


def _genome(start: WarmStart | None, analysis: JobAnalysis) -> Genome | None:
    """A warm start as genes of our jobs: those of the same name, else those at the same position."""
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
