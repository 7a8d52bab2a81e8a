"""Map jobs that wait for others, or that come and are due at times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arguments import as_whole, validate_arguments
from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.effort import Effort
from loadmaster.core.errors import MappingError
from loadmaster.core.progress import (
    Deadline,
    Progress,
    Stopwatch,
    deferred_interrupts,
    no_progress,
    part_of,
)
from loadmaster.core.task_graph import task_graph, upward_rank
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.base import JobAnalysis, whole_picoseconds
from loadmaster.mapping.answer import JobMapping
from loadmaster.mapping.bounds.group_bounds import group_bound
from loadmaster.mapping.group import (
    Cores,
    Group,
    core_and_position,
    group_of,
    queues_of,
)
from loadmaster.mapping.group_search import MappingSearch
from loadmaster.mapping.map_options import MapOptions, weights_of
from loadmaster.mapping.search_groups import MappedGroup, assemble, run_search
from loadmaster.mapping.strategies import auto
from loadmaster.mapping.timeline import is_proven, timeline

_EXACT_PICOSECONDS = 2**52
"""Picoseconds: a quarter of this is the most that all work together may take, so that sums are
exact in double precision."""
_PICOSECOND = 1.0 / PICOSECONDS
"""Seconds in a picosecond."""
_MEMORY = 50
"""How many steps back a neighbour may be as bad as."""

Value = tuple[float, float, float]
_Start = tuple[Floats, Mask, bool]
"""Priorities, the cores that jobs may run on, and whether idle cores wait for releases."""


def _search(
    problem: _DispatchProblem,
    independent: MappingSearch,
    samples: int | None,
    deadline: Deadline,
    report: Progress,
) -> tuple[list[tuple[int, _Attempt]], int, bool]:
    """Make late jobs as little late as possible, weighted, and then the score of the group small,
    and then the makespan; return each new best with the evaluations until then, all evaluations,
    and whether the search was interrupted.

    List schedules come first: by the longest path to the end, by the earliest due date, and in the
    order of the best mapping of independent jobs, on any cores or on those of that mapping. From
    the best of them a local search changes priorities, or the cores that few jobs may run on, or
    whether idle cores wait for jobs of higher priority that are released soon. Else an idle core
    takes the ready job of highest priority that would finish first there. Times are whole
    picoseconds.

    The local search is late acceptance hill climbing (Burke and Bykov, 2017): a neighbour is
    accepted if it is as good as the current schedule or as that of some steps ago.
    """
    group = problem.group
    assert independent.queues is not None
    core, _ = core_and_position(independent.queues, group.cores)
    starts = [
        (rank, cores, waits)
        for rank in (*problem.ranks(), -timeline(group, independent.queues)[0])
        for cores in (group.allowed, core[:, None] == np.arange(group.cores))
        for waits in (False, True)[: 1 + problem.may_wait]
    ]
    tried = [(problem.evaluate(*start), start) for start in starts]
    found, start = min(tried, key=lambda pair: pair[0].value)
    generator = np.random.default_rng(independent.seed)
    evaluations, past = len(starts), [found.value] * _MEMORY
    improvements = [(evaluations, found)]
    enough = (0.0, independent.bound.score * (1 + 1e-9), np.inf)
    ended = False
    try:
        with deferred_interrupts() as interrupts, interrupts.breakable():
            while improvements[-1][1].value > enough and (samples is None or evaluations < samples):
                if ended := deadline.passed():
                    break
                neighbour = problem.neighbour(*start, generator)
                attempt = problem.evaluate(*neighbour)
                evaluations += 1
                at = evaluations % _MEMORY
                if attempt.value <= max(found.value, past[at]):
                    start, found = neighbour, attempt
                past[at] = found.value
                if found.value < improvements[-1][1].value:
                    improvements.append((evaluations, found))
                report("mapping", max(deadline.spent(), evaluations / samples if samples else 0.0))
    except KeyboardInterrupt:
        ended = True
    return improvements, evaluations, ended


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A schedule in whole picoseconds."""

    value: Value
    core: Cores
    start: Ints
    end: Ints


class _DispatchProblem:
    """What the event engine takes, and what to change of it.

    Parameters
    ----------
    group
        The jobs.
    after
        For every job, indices of the jobs that it waits for, all smaller than its own.
    release
        Seconds before which a job may not start.
    due
        Seconds by which it should have ended; infinite where nobody cares.
    weight
        How much a second of lateness counts.
    """

    def __init__(
        self,
        group: Group,
        after: Sequence[Sequence[int]],
        release: Floats,
        due: Floats,
        weight: Floats,
    ) -> None:
        edges = [(before, job) for job, befores in enumerate(after) for before in befores]
        if len(after) != group.jobs or any(
            as_whole(before) is None or not 0 <= before < job for before, job in edges
        ):
            raise MappingError(
                "after: give for every job the indices of earlier jobs that it waits for"
            )
        self.group = group
        self.after = after
        self.due = np.rint(due * PICOSECONDS)
        self.weight = weight
        self.duration, self.never = _durations(group)
        self.graph = task_graph(edges, group.jobs)
        # As the ends are: whole picoseconds.
        self.release = np.rint(release * PICOSECONDS)
        self.may_wait = bool(self.release.any() and np.isfinite(self.due).any())
        self.demand = np.ascontiguousarray(group.demand[:, :, None])

    def evaluate(self, priority: Floats, allowed: Mask, waits: bool) -> _Attempt:
        """The list schedule of these priorities, with jobs on allowed cores only."""
        duration = np.where(allowed, self.duration, self.never)
        found = self.graph.dispatch(
            priority=priority,
            duration=duration,
            demand=self.demand,
            release=self.release.astype(np.int64),
            wait_for_releases=waits,
        )
        late = float((np.maximum(0.0, found.end - self.due) * self.weight).sum() * _PICOSECOND)
        seconds = found.makespan * _PICOSECOND
        score = self.group.score(seconds, self.group.energy_of(found.core))
        return _Attempt((late, score, seconds), found.core, found.start, found.end)

    def ranks(self) -> list[Floats]:
        """Priorities to begin with."""
        shortest = self.duration.min(axis=1).tolist()
        ranks = [np.array(upward_rank(self.after, shortest), dtype=np.float64)]
        if np.isfinite(self.due).any():
            ranks.append(-self.due)
        return ranks

    def longest_path(self) -> float:
        """Seconds before which no schedule ends: the longest chain of jobs, each alone at its
        fastest, from its release on."""
        end: list[float] = []
        least = self.group.alone.min(axis=1).tolist()
        ready = (self.release * _PICOSECOND).tolist()
        for release, befores, seconds in zip(ready, self.after, least, strict=True):
            end.append(max([release, *(end[before] for before in befores)]) + seconds)
        return max(end) * (1.0 - (self.group.jobs + 10) * 2.0**-52)

    def neighbour(
        self, priority: Floats, allowed: Mask, waits: bool, generator: np.random.Generator
    ) -> _Start:
        """Other priorities, or other cores for one job, two or three: one of them, or any."""
        waits ^= self.may_wait and generator.random() < 0.1
        if self.group.cores == 1 or generator.random() < 0.5:
            return _reordered(priority, generator), allowed, waits
        allowed = allowed.copy()
        for job in generator.integers(0, self.group.jobs, generator.integers(1, 4)).tolist():
            cores = np.flatnonzero(self.group.allowed[job])
            allowed[job] = self.group.allowed[job]
            if generator.random() < 0.7:
                allowed[job] = np.arange(self.group.cores) == generator.choice(cores)
        return priority, allowed, waits


def _reordered(priority: Floats, generator: np.random.Generator) -> Floats:
    """Give one, two or three jobs other places in the order of priorities; new priorities are
    places in it, negated."""
    order = np.argsort(-priority, kind="stable")
    for job in generator.integers(0, len(order), generator.integers(1, 4)).tolist():
        order = np.insert(order[order != job], generator.integers(0, len(order)), job)
    return -np.argsort(order).astype(np.float64)


def _durations(group: Group) -> tuple[Ints, int]:
    """Whole picoseconds, rounded up, and, for where a core may not run a job, longer than all work
    together, so that nobody goes there."""
    seconds = group.busy
    # A job takes at least a picosecond, and with others that ask for much of the bandwidth a
    # multiple of it.
    longest = (
        float((np.maximum(seconds, _PICOSECOND) * np.maximum(1.0, group.demand)).max(axis=1).sum())
        * PICOSECONDS
        * group.cores
    )
    if not longest < _EXACT_PICOSECONDS / 4:
        raise MappingError(
            "with dependencies or deadlines, the work of all jobs, one after another and each on"
            " its slowest core, may take at most 18 minutes: map fewer jobs at once, or check the"
            " efficiencies of cores"
        )
    never = int(longest) + group.jobs + 1
    return np.where(group.allowed, whole_picoseconds(seconds), never), never


@validate_arguments(MappingError)
@deferred_interrupts()
def map_dependent_jobs(
    analysis: JobAnalysis,
    bandwidth: float,
    after: Iterable[Sequence[int]],
    *,
    release: Iterable[float] | None = None,
    due: Iterable[float] | None = None,
    weight: Iterable[float] | None = None,
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
    by list scheduling and local search (:mod:`loadmaster.mapping.map_dependent_jobs`), the same for
    ``auto`` and ``list``; other options are those of :func:`map_jobs`.

    Raises
    ------
    MappingError
        As :func:`map_jobs`, and for what only jobs without dependencies can have.
    """
    weights = weights_of(objective)
    if strategy not in ("auto", "list"):
        raise MappingError(f"strategy {strategy!r}: jobs with dependencies are mapped with auto")
    options = MapOptions(
        strategy, allocator, samples=samples, time_limit=time_limit, seed=seed, effort=effort
    )
    group = group_of(analysis, bandwidth, allocator, weights)
    given = {"release": (release, 0.0), "due": (due, np.inf), "weight": (weight, 1.0)}
    times = [_per_job(name, group.jobs, *values) for name, values in given.items()]
    if times[0].max() > 3600:
        raise MappingError("release: a job would come after more than an hour: map earlier ones")
    problem = _DispatchProblem(group, tuple(after), *times)
    watch = Stopwatch()
    # Half the budget maps the jobs as if they were independent.
    budgets = [samples and -(-samples // 2)] * 2
    if samples is None and time_limit is None:
        usual = (auto.STRATEGY.samples(group), max(100, min(5_000, 500_000 // group.jobs)))
        budgets = [*map(options.budget.share, usual)]
    deadline, report = Deadline.within(time_limit), progress or no_progress
    independent = MappingSearch(
        group,
        group_bound(group),
        seed=seed,
        samples=budgets[0],
        deadline=deadline.part(1 / 2),
        progress=part_of(report, "mapping", 0, 2),
    )
    stopped = run_search(independent, auto.STRATEGY, deadline)
    # No less than jobs take that do not wait, and than the longest chain.
    bound = independent.bound.raised(group, problem.longest_path(), "longest chain of jobs")
    independent.bound = bound
    left, report = 0 if stopped else budgets[1], part_of(report, "mapping", 1, 2)
    improvements, evaluations, interrupted = _search(problem, independent, left, deadline, report)
    best = improvements[-1][1]
    late, _, makespan = best.value
    queues = queues_of(best.core, np.argsort(best.start, kind="stable"), group.cores)
    mapped = MappedGroup(
        group,
        queues,
        np.asarray(best.start * _PICOSECOND, np.float64),
        np.asarray(best.end * _PICOSECOND, np.float64),
        makespan,
        is_proven(makespan, bound.makespan),
        bound,
        independent.taken + evaluations,
        tuple((independent.taken + number, found.value[1]) for number, found in improvements),
        interrupted or stopped,
    )
    found = assemble(analysis, objective, options, [mapped], watch)
    # The bounds do not know whether other schedules are less late.
    return replace(found, status="feasible") if late else found


def _per_job(name: str, count: int, values: Iterable[float] | None, usual: float) -> Floats:
    """Return one number for each job, ``usual`` if none are given; raise MappingError for negative
    or missing ones, and for infinite ones other than due times."""
    try:
        result = np.full(count, usual) if values is None else np.array([*values], dtype=np.float64)
    except (TypeError, ValueError):
        result = np.empty(0)
    if (
        result.shape != (count,)
        or not (result >= 0).all()
        or (name != "due" and not np.isfinite(result).all())
    ):
        raise MappingError(f"{name}: give a number of at least 0 for every job")
    return result
