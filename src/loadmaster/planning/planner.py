"""From networks and a target to a plan: networks are cut in several ways, and of the plans that come of it the best is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Integral, Real

from loadmaster.core.arguments import require_known, takes
from loadmaster.core.deadline import Deadline
from loadmaster.core.errors import CapacityError, PlanError, TargetError
from loadmaster.core.interrupts import Interrupts, deferred_interrupts
from loadmaster.core.progress import Progress
from loadmaster.core.units import format_bytes, format_seconds, seconds_of
from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.energy_model import EnergyModel
from loadmaster.planning.assemble import assemble
from loadmaster.planning.cutting.candidates import Candidate, candidates, uncut
from loadmaster.planning.cutting.network_bounds import network_bounds
from loadmaster.planning.decisions import Score, Solution
from loadmaster.planning.goal import Goal, goal_of
from loadmaster.planning.inherit import inherited, require_smaller
from loadmaster.planning.plan import Plan
from loadmaster.planning.plan_records import ROUNDS
from loadmaster.planning.workload_planner import SAMPLES, WorkloadPlanner
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload
from loadmaster.workloads.lowering.instantiate import lower

CUTS = ("auto", "none")
"""How operators may be cut: as the planner finds best, or only where they exceed the fast memory."""
_MOST_OPERATORS = 1_000_000
_MOST_JUDGED = 10_000
"""Pieces in all the ways to cut that are judged: what exceeds it is not tried, so that planning large workloads takes bounded work."""
_MOST_REFINED = 600
"""Pieces in all the changes of the best way to cut that are judged."""
_STOPPED = (
    "the search was stopped early, by a time limit or an interrupt, and what was left was packed with the least effort: "
    "this is the best plan so far"
)
_AFTER_SEARCH = 3.0
"""Times that lowering and costing jobs takes: what is kept of a time limit for bounds and for writing the plan down."""
_TIME_TO_JUDGE = 0.3
"""Share of a time limit after which no further way to cut is judged."""


@takes(
    PlanError,
    target=Target,
    mini_batches=Integral,
    samples=Integral,
    rounds=Integral,
    objective=str,
    network=str,
    deadlines=Mapping,
    periods=Mapping,
    progress=Callable,
    time_limit=Real,
    seed=Integral,
    cut=str,
    smaller=Target,
)
def plan(
    graphs: Sequence[Graph],
    target: Target,
    *,
    mini_batches: int = 1,
    seed: int = 0,
    samples: int = SAMPLES,
    rounds: int = ROUNDS,
    time_limit: float | None = None,
    objective: str = "throughput",
    network: str | None = None,
    deadlines: Mapping[str, float] | None = None,
    periods: Mapping[str, float] | None = None,
    cut: str = "auto",
    smaller: Target | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Plan networks together on a target.

    Cuts operators into pieces that run on several cores or band by band through a small fast memory, in a few ways that a model suggests
    (:mod:`loadmaster.planning.cutting`). Each is judged by few evaluations, and planned in full are the best of them and whole operators,
    unless a bound shows that these cannot win. So a plan is never worse than with whole operators, unless time runs out.

    A full plan lowers networks to jobs, costs every job on every core, then maps, places, allocates and simulates: first with everything
    in main memory, then with activations kept in the fast memory. From the best of these the joint search goes on, over cores, order,
    residency and
    transfers together: weights are fetched once for all mini-batches that are near one another in the order, and ahead of their use. The
    best plan is returned, so it is never worse than the best separate one. Best is the one whose mini-batches are late least, all
    together, then the one with the best objective, then the fastest.

    Parameters
    ----------
    graphs : sequence of Graph
        From :func:`loadmaster.load`.
    target : Target
        From :func:`loadmaster.target`.
    mini_batches : int
        Instances of every network; they share weights.
    seed : int
        The same input and seed give the same plan.
    samples : int
        Schedules evaluated per round of the separate pipeline; with ``rounds`` the budget that decides the answer.
    rounds : int
        Rounds of the joint search, 128 orders each; 0 leaves it out: then networks are mapped, placed and allocated separately.
    time_limit : float, optional
        Seconds in which the plan should be there: the search stops where it is, early enough for bounds and for writing the plan down, and
        memories are packed with the least effort that packs them; the plan's notes then say so. So they do after Ctrl-C, which ends the
        search, and once more gives up. Costs, one plan and the bounds take their time whatever the limit.
    objective : str
        What is minimised: ``throughput``, the makespan; ``latency``, the longest time from the release of a mini-batch of one network to
        its end; ``energy``; or ``edp``, energy times makespan.
    network : str, optional
        The network whose latency counts; the first unless told.
    deadlines, periods : mapping, optional
        Seconds, by network: mini-batch ``k`` is released at ``k`` times the period, before which none of its jobs starts, and due a
        deadline later. Without a period all mini-batches are there from the start; without a deadline they are never late.
    cut : str
        ``auto``, or ``none``: operators stay whole, but for those that exceed the fast memory.
    smaller : Target, optional
        A machine of which the target has more: memory, bandwidth, cores or clock. The networks are planned for it too, and its plan is
        taken if it is the better one here, so that the plan is not slower than the one for the smaller machine.
    progress : callable, optional
        Called with the stage and the share of it that is done.

    Raises
    ------
    CapacityError
        If main memory cannot hold the networks, or no plan was found with which it can: with the bytes that the plan of least need takes,
        and those that every plan takes. If a machine that must copy operands cannot hold those of one job.
    PlanError
        If an argument is out of range, a network is not known, or ``smaller`` is not.
    """
    _check_arguments(graphs, target, mini_batches, seed, rounds)
    if smaller is not None:
        require_smaller(smaller, target)
    require_known("cut", cut, CUTS, PlanError)
    deadline = Deadline.within(time_limit)
    with deferred_interrupts() as interrupts:
        report = _reporting(progress, interrupts)
        report("lowering", 0.0)

        def goal_for(workload: Workload) -> Goal:
            return goal_of(workload, objective, network, deadlines or {}, periods or {})

        def planner(candidate: Candidate, machine: Target = target) -> WorkloadPlanner:
            begun = time.monotonic()
            workload = lower(graphs, machine, mini_batches=mini_batches, cuts=candidate.cuts)
            goal = goal_for(workload)
            report("costing", 0.0)
            table = job_table(workload, machine)
            energy = EnergyModel(table, energy_rates(machine))
            # Bounds and the records of the plan take about as long again, several times.
            search = deadline.before(_AFTER_SEARCH * (time.monotonic() - begun))
            return WorkloadPlanner(workload, table, machine, goal, energy, seed, samples, rounds, search, report, interrupts)

        def contest_on(machine: Target) -> _Contest:
            judging = deadline.part(_TIME_TO_JUDGE)
            offered = candidates(graphs, machine, mini_batches, cut, judging.passed)
            return _Contest(offered, lambda candidate: planner(candidate, machine), interrupts, judging, report)

        contest = contest_on(target)
        chosen, best = contest.best()
        with suppress(CapacityError):
            if smaller is not None:
                chosen, best = contest.compared(chosen, best, *inherited(*contest_on(smaller).best(), target))
        report("bounding", 0.0)
        bounds = network_bounds(graphs, target, mini_batches, goal_for, chosen.energy.rates)
        of_jobs = None if bounds is not None and deadline.passed() else chosen.bounds()
        report("assembling", 0.0)
        notes = [*_streaming_notes(chosen.workload, target), *contest.notes(), *(uncut(graphs, target) if cut == "auto" else ())]
        if bounds is not None and of_jobs is not None:
            notes.append(
                "the lower bound holds however operators are cut; the jobs as they were cut take at least "
                f"{format_seconds(seconds_of(of_jobs.makespan.picoseconds))}: {of_jobs.makespan.limit}"
            )
        return assemble(
            chosen.workload, chosen.table, target, chosen.energy.rates, chosen.goal, best, bounds or chosen.bounds(), seed, notes
        )


@dataclass(frozen=True)
class _Entry:
    """A way to cut, the planner of its jobs, and the score that a glance gives it."""

    candidate: Candidate
    planner: WorkloadPlanner
    glance: Score | None = None

    def order(self) -> tuple[bool, Score | tuple[()]]:
        """The better entry comes first; one that was not looked at last."""
        return self.glance is None, self.glance or ()


class _Contest:
    """Of several ways to cut networks, finds the one with the best plan; the first that is offered leaves operators whole."""

    def __init__(
        self,
        offered: Iterator[Candidate],
        planner: Callable[[Candidate], WorkloadPlanner],
        interrupts: Interrupts,
        until: Deadline,
        report: Progress,
    ) -> None:
        self._offered, self._planner, self._interrupts, self._report = offered, planner, interrupts, report
        self._until = until
        self._notes: list[str] = []

    def best(self) -> tuple[WorkloadPlanner, Solution]:
        """The best plan and its planner: of the way to cut that seems best, or of whole operators."""
        first = next(self._offered)
        whole = _Entry(first, self._planner(first))
        best: tuple[Score, _Entry, Solution] | None = None
        error: CapacityError | None = None
        for entry in self._ranking(whole):
            if best is not None and (entry.planner.is_late() or self._cannot_win(entry, best[0])):
                continue
            try:
                solution = entry.planner.best()
            except CapacityError as refusal:
                error = refusal
                continue
            score = entry.planner.score_of(solution)
            if best is None or score < best[0]:
                best = (score, entry, solution)
        if best is None:
            assert error is not None
            raise error
        _, chosen, solution = best
        if chosen is not whole:
            self._notes.append(f"operators were cut {chosen.candidate.name}: {_pieces(chosen.planner.workload)}")
        if any(entry.planner.interrupted for entry in (chosen, whole)):
            self._notes.append(_STOPPED)
        return chosen.planner, solution

    def compared(
        self, planner: WorkloadPlanner, solution: Solution, other: WorkloadPlanner, theirs: Solution
    ) -> tuple[WorkloadPlanner, Solution]:
        """The better of the best plan and one that was made for a smaller machine."""
        if planner.score_of(solution) <= other.score_of(theirs):
            return planner, solution
        stopped = _STOPPED in self._notes or other.interrupted
        self._notes = ["this is the plan for a smaller machine, timed on this one: none was found that is better"]
        self._notes += [_STOPPED] * stopped
        return other, theirs

    def notes(self) -> list[str]:
        """What a reader of the plan should know about how it came to be."""
        return self._notes

    def _ranking(self, whole: _Entry) -> list[_Entry]:
        """The way to cut that seems best, then whole operators; only these if there is nothing to choose, or no time."""
        seeming = whole
        try:
            with self._interrupts.breakable():
                for entry in self._judged(whole):
                    seeming = min(seeming, entry, key=_Entry.order)
                for entry in self._refined(seeming):
                    seeming = entry
        except KeyboardInterrupt:
            pass
        return [whole] if seeming.planner is whole.planner else [seeming, whole]

    def _judged(self, whole: _Entry) -> Iterator[_Entry]:
        """Entries with what a glance says of them; whole operators are judged too once there is anything to compare them with."""
        pieces = len(whole.planner.workload.jobs)
        for number, candidate in enumerate(self._offered):
            if self._until.passed():
                return
            self._report("choosing cuts", min(0.95, number / 10))
            if number == 0:
                yield replace(whole, glance=whole.planner.glance())
            entry = self._glanced_at(candidate)
            if entry is None:
                continue
            pieces += len(entry.planner.workload.jobs)
            if pieces > _MOST_JUDGED:
                self._notes.append(f"not every way to cut operators was tried, as they are more than {_MOST_JUDGED} pieces together")
                return
            yield entry

    def _refined(self, entry: _Entry) -> Iterator[_Entry]:
        """Ever better entries with one operator after the other cut in another way, as long as a few of these help."""
        pieces, improves = 0, True
        while improves:
            improves = False
            for candidate in entry.candidate.changed():
                if self._until.passed() or pieces > _MOST_REFINED:
                    return
                self._report("changing cuts", pieces / _MOST_REFINED)
                changed = self._glanced_at(candidate)
                if changed is not None:
                    pieces += len(changed.planner.workload.jobs)
                    if changed.order() < entry.order():
                        entry, improves = changed, True
                        yield entry
                        break

    def _glanced_at(self, candidate: Candidate) -> _Entry | None:
        """A way to cut and what a glance says of it; None if the parts of an operand are too many for a core's buffer."""
        try:
            planner = self._planner(candidate)
        except TargetError:
            return None
        return _Entry(candidate, planner, planner.glance())

    def _cannot_win(self, entry: _Entry, best: Score) -> bool:
        """Whether even the bound of an entry's jobs is no better than a plan that is late nowhere."""
        planner = entry.planner
        bounds = planner.bounds()
        return best[0] == 0 and bounds.objective(planner.goal.objective, planner.goal.latency_network) >= best[1]


def _pieces(workload: Workload) -> str:
    """How many operators run in pieces, and the one in most."""
    pieces = [job for job in workload.jobs if job.ranges]
    operators = {(job.network, job.mini_batch, job.operators) for job in pieces}
    every = {(job.network, job.mini_batch, job.operators) for job in workload.jobs}
    most = max(pieces, key=lambda job: job.tiles, default=None)
    finest = f"; the most, {most.tiles}, of {most.operators[0]} of {most.network}" if most else ""
    return f"{len(operators)} of {len(every)} fused operators run in {len(pieces)} pieces{finest}"


def _reporting(progress: Progress | None, interrupts: Interrupts) -> Progress:
    """Progress as the planner calls it: a KeyboardInterrupt that comes meanwhile is like any other."""

    def report(stage: str, share: float) -> None:
        try:
            if progress is not None:
                progress(stage, share)
        except KeyboardInterrupt:
            interrupts()

    return report


def _check_arguments(graphs: Sequence[Graph], target: Target, mini_batches: int, seed: int, rounds: int) -> None:
    """Refuse what would only fail later, and obscurely."""
    if not isinstance(graphs, Iterable) or not all(isinstance(graph, Graph) for graph in graphs):
        raise PlanError("networks must be a list of graphs: read each with loadmaster.load(FILE)")
    if not 0 <= seed < 2**63:
        raise PlanError(f"seed must lie between 0 and 2^63, and is {seed}")
    if rounds < 0:
        raise PlanError(f"rounds must be at least 0, and are {rounds}")
    if not target.main.in_place and (target.fast is None or target.copy is None or len(target.cores) > 1):
        raise PlanError(f"{target.name}: a machine that must copy operands needs a fast memory, a copy engine and a single core")
    jobs = sum(len(graph.ops) for graph in graphs) * mini_batches
    if jobs > _MOST_OPERATORS:
        raise PlanError(f"{jobs} operators in all mini-batches are more than the {_MOST_OPERATORS} that are planned at once: plan fewer")


def _streaming_notes(workload: Workload, target: Target) -> Iterator[str]:
    """Name the jobs that no fast memory of this size can serve, and those that were cut so that it can."""
    if target.fast is None:
        return
    fast = target.fast
    tiles = sum(job.tile == 0 and job.tiles > 1 and not job.ranges for job in workload.jobs)
    if tiles:
        yield f"{tiles} operators were split into tiles, because their operands exceed {fast.name} ({format_bytes(fast.capacity)})"
    sizes = [(sum(operand.bytes for operand in (*job.reads, *job.writes)), job.name) for job in workload.jobs]
    large = sorted((item for item in sizes if item[0] > fast.capacity), reverse=True)
    if large and target.main.in_place:
        yield (
            f"{len(large)} jobs stream from {target.main.name}, because their operands exceed {fast.name} ({format_bytes(fast.capacity)}): "
            f"the largest is {large[0][1]} with {format_bytes(large[0][0])}"
        )
