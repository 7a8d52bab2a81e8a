"""From jobs and what they cost to the best complete plan of them: the only place that knows
mapping, placement and allocation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.effort import Effort
from loadmaster.core.errors import CapacityError
from loadmaster.core.progress import Deadline, Interrupts, Progress
from loadmaster.cost.analytical.energy import EnergyModel, energy_rates
from loadmaster.cost.analytical.job_costs import least_table, tiled_table
from loadmaster.cost.base import JobTable
from loadmaster.planning.addresses import Addresses, Draft
from loadmaster.planning.assessor import Assessor
from loadmaster.planning.bounds import goal_bounds
from loadmaster.planning.decisions import Bounds, Packing, Score, Solution
from loadmaster.planning.goal import Goal, refusal, require_room
from loadmaster.planning.joint.problem import JointProblem
from loadmaster.planning.joint.search import Found, JointSearch
from loadmaster.planning.packing import PackingCache, Stays
from loadmaster.planning.residency import evict, worth_of_stays
from loadmaster.planning.separate import SeparatePipeline
from loadmaster.targets.hardware import Target, core_places
from loadmaster.workloads.job import Workload

_LESS_ROOM = 0.97
"""If what a round found cannot be packed, the joint search goes on with this fraction of the room
used until then."""
_EXTRA_PACKING_ATTEMPTS = 8
"""After the last round, if nothing was packed: retries, each with less of the fast memory."""
_LATE_PACKING_ATTEMPTS = 4
"""The same retries, once the time limit has passed."""


@dataclass
class WorkloadPlanner:
    """Plans the jobs of one workload: its operators are cut, and how is not asked any more."""

    workload: Workload
    table: JobTable
    target: Target
    goal: Goal
    energy: EnergyModel
    seed: int
    effort: Effort
    deadline: Deadline
    report: Progress
    interrupts: Interrupts
    interrupted: bool = False
    tilings: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The tiling of every job, by its position in
    :data:`~loadmaster.cost.analytical.nests.EXPECTED`; none given: the first."""
    packings: PackingCache = field(default_factory=PackingCache)
    """What was packed before, here and by planners that this one makes of itself."""
    joint: list[JointProblem] = field(default_factory=list)
    """Problems of the joint search: planners of the same jobs and costs share one, and what it
    remembers."""
    _bounds: Bounds | None = field(init=False, default=None)
    _assess: Assessor = field(init=False)
    _addresses: Addresses = field(init=False)
    _separate: SeparatePipeline = field(init=False)

    def __post_init__(self) -> None:
        if not len(self.tilings):
            self.tilings = np.zeros(len(self.workload.jobs), dtype=np.int64)
        self._assess = Assessor(self.workload, self.table, self.target, self.goal, self.energy)
        self._addresses = Addresses(
            self._assess,
            lambda: 0.0 if self.is_late() else self.deadline.left(),
            self.packings,
            self.effort,
        )
        stops = (self.deadline, self.report, self.interrupts, self.is_late)
        self._separate = SeparatePipeline(
            self._assess, self._addresses, self.seed, self.effort, *stops
        )

    def best(self) -> Solution:
        """The best complete plan; of equals, the one with most on chip. Ctrl-C or the deadline ends
        the search once there is one."""
        require_room(self.workload, self.target.main)
        if not self.target.main.in_place:
            return self._copied()
        best = self._separate.without_fast_memory()
        try:
            with self.interrupts.breakable():
                best = self._separate.with_residents(best) or best
        except KeyboardInterrupt:
            self.interrupted = True
        if self._joins() and self.deadline.passed():
            return self._hurried(best)
        separate = None if best.score.overflow else self._addresses.complete(best)
        if not self._joins() or (self.interrupted and separate is not None):
            return self._fitting(separate, best.score)
        return self._jointly(best, separate)

    def _hurried(self, begun: Draft) -> Solution:
        """What the first orders of the joint search come to, where no time is left for more; what
        was begun if that is better."""
        found = None
        with suppress(CapacityError):
            found = self._jointly(begun, None)
        if found is not None and (begun.score.overflow or self.score_of(found) <= begun.score):
            return found
        separate = None if begun.score.overflow else self._addresses.complete(begun)
        return self._fitting(
            min(
                (each for each in (found, separate) if each is not None),
                key=self.score_of,
                default=None,
            ),
            begun.score,
        )

    def retargeted(self, solution: Solution, target: Target) -> tuple[WorkloadPlanner, Solution]:
        """The same jobs, order, stays and addresses on a machine that has at least as much of
        everything; cores have their places there."""
        table = tiled_table(self.workload, target, self.tilings)
        energy = EnergyModel(table, energy_rates(target))
        larger = replace(self, table=table, target=target, energy=energy)
        places = np.array(core_places(self.target, target), dtype=np.int32)
        schedule = replace(solution.schedule, core=places[solution.schedule.core])
        return larger, larger.timed(replace(solution, schedule=schedule))

    def bounds(self) -> Bounds:
        """What no plan of these jobs can go below."""
        if self._bounds is None:
            least = least_table(self.workload, self.target)
            self._bounds = goal_bounds(
                self.workload, least, self.target, self.energy.rates, self.goal
            )
        return self._bounds

    def tiled(self, table: JobTable, tilings: Ints) -> WorkloadPlanner:
        """A planner of the same jobs with other tilings; bounds are those of any."""
        planner = replace(
            self, table=table, energy=EnergyModel(table, self.energy.rates), tilings=tilings
        )
        planner._bounds = self._bounds
        return planner

    def quick_score(self) -> Score:
        """An estimate of the score of :meth:`best`: few schedules and orders, and no addresses in
        main memory."""
        few = replace(self, effort=self.effort.screening)
        begun = (
            few._separate.without_fast_memory()
            if self.target.main.in_place
            else few._separate.staged()
        )
        if not self._joins():
            if not self.target.main.in_place:
                return begun.score
            return (few._separate.with_residents(begun) or begun).score
        search = JointSearch(
            self._joint_problem(),
            self._orders_of(begun),
            samples=few.effort.evaluations,
            seed=self.seed,
            late=self.is_late,
        )
        return min(begun.score, search.run(few.effort.evaluations).evaluation.final_score)

    def resumed(self, solution: Solution) -> Solution:
        """A plan no worse than a complete one, by a round of the joint search from its order."""
        if not self._joins():
            return solution
        begun = Draft(
            solution.schedule, solution.placement, solution.timeline, None, self.score_of(solution)
        )
        few = replace(self, effort=self.effort.one_packing)
        found = few._jointly(begun, solution)
        self.interrupted |= few.interrupted
        made = max((step[0] for step in solution.search), default=0)
        return replace(
            found,
            search=(*solution.search, *((made + more, score) for more, score in found.search[1:])),
        )

    def _joins(self) -> bool:
        fast = self.target.fast
        return fast is not None and fast.capacity > 0 and self.effort.evaluations > 0

    def _joint_problem(self) -> JointProblem:
        for known in self.joint:
            if (
                known.table is self.table
                and known.target is self.target
                and known.goal is self.goal
            ):
                return known
        self.joint.append(
            JointProblem(self.workload, self.table, self.target, self.goal, self.energy)
        )
        return self.joint[-1]

    def _orders_of(self, candidate: Draft) -> list[Ints]:
        """Orders that the joint search begins with: the separate plan's, and that of the jobs,
        which runs bands depth first."""
        start = candidate.timeline.start[: len(self.workload.jobs)]
        own = np.arange(len(start), dtype=np.int64)
        return [np.lexsort((own, start)).astype(np.int64), own]

    def score_of(self, solution: Solution) -> Score:
        """What a complete plan is compared by."""
        return self._assess.score_of(solution)

    def timed(self, solution: Solution) -> Solution:
        """What was decided for another machine or other tilings, timed with these."""
        return self._addresses.timed(solution)

    def _jointly(self, begun: Draft, separate: Solution | None) -> Solution:
        """Go on from the separate plan, whether main memory can hold it or not, to the best one
        that has addresses."""
        best, nearest = separate, begun.score
        history = [] if separate is None else [(0, self.score_of(separate))]
        problem = self._joint_problem()
        samples = self.effort.evaluations
        search = JointSearch(
            problem,
            self._orders_of(begun),
            samples=samples,
            seed=self.seed,
            late=self.is_late,
            progress=self.report,
        )
        try:
            with self.interrupts.breakable() if separate is not None else nullcontext():
                for evaluations, score, solution in self._improvements(problem, search, separate):
                    nearest = min(nearest, score)
                    if solution is not None:
                        best = solution
                        history.append((evaluations, self.score_of(solution)))
        except KeyboardInterrupt:
            self.interrupted = True
        return replace(self._fitting(best, nearest), search=tuple(history))

    def _improvements(
        self, problem: JointProblem, search: JointSearch, separate: Solution | None
    ) -> Iterator[tuple[int, Score, Solution | None]]:
        """What every round of the joint search finds: evaluations so far, the score, and the plan,
        if it has addresses and is better.

        Where no addresses are found, the search goes on with less room.
        """
        least, failures, packs = None if separate is None else self.score_of(separate), 0, False
        rounds = tries = 0
        while True:
            over = rounds >= self.effort.packings or search.interrupted
            self.interrupted |= search.interrupted
            if over and (
                packs
                or tries >= (_LATE_PACKING_ATTEMPTS if self.is_late() else _EXTRA_PACKING_ATTEMPTS)
            ):
                return
            rounds, tries = (rounds, tries + 1) if over else (rounds + 1, tries)
            found = search.run(0 if over else self.effort.evaluations // self.effort.packings)
            score = found.evaluation.final_score
            yield found.evaluations, score, None
            if score.overflow or (least is not None and score >= least):
                # Packing it would be in vain: with even less room nothing better is found.
                packs = least is not None and not score.overflow
                continue
            candidate, whole = self._packed(problem, found)
            solution = (
                None
                if candidate is None
                else self._addresses.complete(candidate, needed=least is None)
            )
            # Once it is late, what has found no address may stay in main memory.
            packs = solution is not None and (whole or self.is_late())
            if not packs:
                # Where it failed before, it is far from fitting.
                failures += 1
                memory = 0 if candidate is not None and solution is None else 1
                search.shrink_capacity(memory, _LESS_ROOM**failures)
            if solution is None:
                continue
            score = self.score_of(solution)
            if least is None or score < least:
                least = score
                yield found.evaluations, score, solution

    def _packed(self, problem: JointProblem, found: Found) -> tuple[Draft | None, bool]:
        """What was found, with addresses in the fast memory, and whether all of it: what finds none
        goes back to main memory.

        None where it cannot.
        """
        schedule, placement, timeline = problem.decisions(found.evaluation)
        tensors, jobs = self.workload.tensors, len(self.workload.jobs)
        worth = worth_of_stays(
            [r for r in placement.residences if r.memory == 1], tensors, self.table, schedule
        )
        packed = self._addresses.pack(1, placement, timeline, worth)
        unplaced = [
            r for r, offset in zip(packed.residences, packed.offsets, strict=True) if offset < 0
        ]
        if unplaced and not self.target.main.in_place:
            return None, False
        if unplaced:
            placement, timeline = evict(unplaced, placement, timeline, tensors, self.table, jobs)
            placed = [offset for offset in packed.offsets if offset >= 0]
            packed = Stays.of(self.workload, placement, timeline, 1).packed(
                Packing(np.array(placed, dtype=np.int64), 0, packed.load)
            )
        return Draft(
            schedule, placement, timeline, packed, found.evaluation.final_score
        ), not unplaced

    def is_late(self) -> bool:
        """Whether the search should end where it is."""
        self.interrupted |= self.interrupts.requested or self.deadline.passed()
        return self.interrupted

    def _copied(self) -> Solution:
        """The best plan on a machine that must copy all operands: with each copied as early as
        space allows, or found jointly."""
        begun, found = self._separate.staged(), next(self._separate.staged_and_packed(), None)
        separate = (
            None if found is None or found.score.overflow else self._addresses.complete(found)
        )
        if not self._joins() or (self.interrupted and separate is not None):
            return self._fitting(separate, begun.score)
        return self._jointly(begun, separate)

    def _fitting(self, solution: Solution | None, nearest: Score) -> Solution:
        """A solution, if there is one; else say how near to fitting into main memory any came."""
        if solution is None:
            raise refusal(self.workload, self.target, nearest.overflow, stopped=self.interrupted)
        return solution
