"""Selects the cut of the networks: of many candidates the one of the best plan.

    minimise over c in candidates   score(plan of c)

A full plan of every candidate would take too long, so each candidate is screened first. Its quick
score comes from a twelfth of the evaluations (of very many jobs: a quarter of their own) and
ignores addresses. The candidate with the best quick score is planned in full. The second best is
planned too if the first plan, with addresses, is worse than the second quick score. Whole operators
are planned too, unless their lower bound shows that they cannot be better."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.errors import CapacityError, TargetError
from loadmaster.core.progress import Deadline, Interrupts, Progress
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.analytical.energy import EnergyModel
from loadmaster.cost.analytical.job_costs import job_tables, mixed_table
from loadmaster.cost.base import JobTable, job_times
from loadmaster.planning.cutting.candidates import Candidate
from loadmaster.planning.decisions import Score, Solution
from loadmaster.planning.goal import require_main_room
from loadmaster.planning.workload_planner import WorkloadPlanner
from loadmaster.workloads.job import Workload

_LONGER = 25.0
"""Part of a time limit that a candidate needs, as a multiple of the time to lower and cost whole
operators: a candidate has several times as many jobs, to be costed, screened, planned and
written."""

MOST_JOBS = 20_000
"""Most jobs of all screened candidates together, and of a plan that is retiled, so that planning
large workloads takes bounded work. Candidates with large pieces do not count: they have few jobs
for the size of their networks."""


def retiled(planner: WorkloadPlanner, solution: Solution) -> tuple[WorkloadPlanner, Solution]:
    """Choose a tiling for every job of a plan; return the improved plan, or the plan, and its
    planner.

    Every job gets the tiling of the least time on its core and on the links, or of the least
    energy, with its operands in the memories where the plan has them, and the plan is timed with
    these tilings. O(operands x cores x tilings).
    """
    workload, target = planner.problem.workload, planner.problem.target
    if len(workload.jobs) > MOST_JOBS or not target.main.in_place or planner.is_late():
        return planner, solution
    # Once: tilings change neither cores nor memories, by which they are chosen.
    return min(
        ((planner, solution), *_timed(planner, solution, job_tables(workload, target))),
        key=lambda each: each[0].score_of(each[1]),
    )


def _timed(
    planner: WorkloadPlanner, solution: Solution, tables: Sequence[JobTable]
) -> Iterator[tuple[WorkloadPlanner, Solution]]:
    """Yield planners with other tilings, each with the plan timed under these tilings: of the least
    time of every job, its own and that of the links, then of its least energy; of equal ones the
    first."""
    problem, used, core = planner.problem, solution.placement.used, solution.schedule.core
    jobs = np.arange(len(core))
    seconds, joules = [], []
    for table in tables:
        times = job_times(table, problem.target, used)
        own = times.duration[jobs, core] / PICOSECONDS
        seconds.append(own + own * times.demand[jobs, core].sum(axis=1))
        joules.append(EnergyModel(table, problem.energy.rates).of_jobs(used)[jobs, core])
    seen = [problem.tilings]
    for costs in (seconds, joules) if problem.goal.needs_energy else (seconds,):
        chosen = np.argmin(np.stack(costs), axis=0).astype(np.int64)
        if not any(np.array_equal(chosen, other) for other in seen):
            seen.append(chosen)
            other = planner.tiled(mixed_table(tables, chosen), chosen)
            yield other, replace(other.timed(solution), search=solution.search)


_STOPPED = (
    "the search was stopped early, by a time limit or an interrupt, and what was left was packed"
    " with the least effort: this is the best plan so far"
)


def fills_selection(jobs: int) -> bool:
    """Whether so many jobs leave no room in :data:`MOST_JOBS` for a candidate with as many."""
    return 2 * jobs > MOST_JOBS


@dataclass(frozen=True)
class _Entry:
    """A candidate, the planner of its jobs, and its quick score, None before the screening."""

    candidate: Candidate
    planner: WorkloadPlanner
    quick: Score | None = None


class CutSelection:
    """Selects the candidate with the best plan; the first that is offered leaves operators
    whole."""

    def __init__(
        self,
        offered: Iterator[Candidate],
        planner: Callable[[Candidate], WorkloadPlanner],
        interrupts: Interrupts,
        deadline: Deadline,
        report: Progress,
    ) -> None:
        self._offered = offered
        self._planner = planner
        self._interrupts = interrupts
        self._report = report
        self._deadline = deadline
        self._needed = 0.0
        self._tried: int | None = None
        self._stopped = False
        self._notes: list[str] = []
        self.full = False
        """Whether the screened candidates leave no room in :data:`MOST_JOBS` for another."""
        self.urgent: Sequence[bool] = ()
        """Of every network, whether it is one of :attr:`Goal.urgent`; known when the first
        candidate is."""

    def progress(self, stage: str, share: float) -> None:
        """Report the progress of a planner or, during the screening, the number of candidates
        tried."""
        if self._tried is not None:
            stage, share = f"choosing cuts, {self._tried} tried", 0.0
        self._report(stage, share)

    def is_late(self) -> bool:
        """Whether too little time is left to begin another candidate."""
        return self._deadline.left() < self._needed

    def best(self) -> tuple[WorkloadPlanner, Solution]:
        """Screen the candidates and plan the best ones; return the best plan and its planner."""
        begun = time.monotonic()
        first = next(self._offered)
        whole = _Entry(first, self._planner(first))
        problem = whole.planner.problem
        require_main_room(problem.workload, problem.target)
        self.urgent = [info.name in problem.goal.urgent for info in problem.workload.networks]
        self._needed = _LONGER * (time.monotonic() - begun)
        best: tuple[Score, _Entry, WorkloadPlanner, Solution] | None = None
        error: CapacityError | None = None
        ranking = self._ranking(whole)
        for entry in ranking:
            if best is not None and (entry.planner.is_late() or _cannot_win(entry, whole, best[0])):
                continue
            try:
                # Tilings are chosen for every plan: they may reverse which plan is the better.
                planner, solution = retiled(entry.planner, entry.planner.best())
            except CapacityError as refusal:
                error = refusal
                continue
            score = planner.score_of(solution)
            if best is None or score < best[0]:
                best = (score, entry, planner, solution)
        if best is None:
            assert error is not None
            raise error
        _, chosen, planner, solution = best
        if chosen is not whole:
            self._notes.append(
                _describe_cut(chosen.candidate.name, chosen.planner.problem.workload)
            )
        self._stopped |= any(entry.planner.interrupted for entry in ranking)
        return planner, solution

    def compared(
        self,
        best: tuple[WorkloadPlanner, Solution] | None,
        other: tuple[WorkloadPlanner, Solution],
    ) -> tuple[WorkloadPlanner, Solution]:
        """Return the better of the best plan, if there is one, and a plan that was made for a
        smaller machine, each with its planner."""
        planner, solution = other
        if best is not None and best[0].score_of(best[1]) <= planner.score_of(solution):
            return best
        self._stopped |= planner.interrupted
        self._notes = [
            "this is the plan for a smaller machine, simulated on this one: no better plan was"
            " found"
        ]
        return other

    def notes(self, *, stopped: bool) -> list[str]:
        """Return notes on how the plan was found; ``stopped``: a later stage was interrupted."""
        return [*self._notes, *[_STOPPED] * (stopped or self._stopped)]

    def _ranking(self, whole: _Entry) -> list[_Entry]:
        """Return the two best candidates by the screening, then whole operators; only the latter if
        no time is left."""
        screened: list[_Entry] = []
        try:
            with self._interrupts.breakable():
                for entry in self._screened(whole):
                    screened = sorted([*screened, entry], key=lambda each: each.quick or ())
        except KeyboardInterrupt:
            self._stopped = True
        self._stopped |= self.is_late()
        self._tried = None
        return list({id(entry.planner): entry for entry in (*screened[:2], whole)}.values())

    def _screened(self, whole: _Entry) -> Iterator[_Entry]:
        """Yield entries with their quick scores; whole operators first, if there are other
        candidates."""
        pieces = len(whole.planner.problem.workload.jobs)
        self.full = fills_selection(pieces)
        refused = 0
        for number, candidate in enumerate(() if self.is_late() else self._offered):
            self._tried = number
            if number == 0:
                with suppress(CapacityError):
                    yield replace(whole, quick=whole.planner.quick_score())
            most = MOST_JOBS if candidate.large else MOST_JOBS - pieces
            entry = self._entry(candidate) if candidate.pieces <= most else None
            refused += candidate.pieces > most
            if entry is not None:
                pieces += len(entry.planner.problem.workload.jobs)
                self.full |= candidate.large and fills_selection(pieces)
                yield entry
            if self.is_late():
                break
        if refused:
            self._notes.append(
                f"candidate cuts that were not tried: {refused}, because all candidates together"
                f" may have {MOST_JOBS} pieces"
            )

    def _entry(self, candidate: Candidate) -> _Entry | None:
        """Return a candidate with its quick score; None if the operands of a piece do not fit into
        a core's buffer or a memory."""
        try:
            planner = self._planner(candidate)
            return _Entry(candidate, planner, planner.quick_score())
        except (TargetError, CapacityError):
            return None


def _cannot_win(entry: _Entry, whole: _Entry, best: Score) -> bool:
    """Whether an entry need not be planned: its quick score is no better than the best plan or, of
    whole operators, their lower bound is no better than a plan without lateness."""
    if entry is not whole:
        return entry.quick is None or entry.quick >= best
    goal = whole.planner.problem.goal
    if fills_selection(len(whole.planner.problem.workload.jobs)):
        # So many jobs take longest to plan, and the screening found a better candidate.
        return True
    least = whole.planner.bounds().objective(goal.objective, goal.latency_network)
    return not best.overflow and not best.lateness and least >= best.objective


def _describe_cut(name: str, workload: Workload) -> str:
    """Describe how many operators were split, how, and into how many pieces."""
    jobs = [job for job in workload.jobs if job.mini_batch == 0]
    pieces = [job for job in jobs if job.ranges]
    is_cut = {(job.network, job.operators): bool(job.ranges) for job in jobs}
    most = max(pieces, key=lambda job: job.tiles, default=None)
    finest = f", at most {most.tiles} ({most.operators[0]} of {most.network})" if most else ""
    return (
        f"{sum(is_cut.values()):,} of {len(is_cut):,} fused operators split {name}: {len(pieces):,}"
        f" pieces{finest}"
    )
