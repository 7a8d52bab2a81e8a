"""From jobs and what they cost to the best complete plan of them: the only place that knows
mapping, placement and allocation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.effort import Effort
from loadmaster.core.progress import Deadline, Interrupts, Progress, no_progress
from loadmaster.cost.analytical.energy import EnergyModel, energy_rates
from loadmaster.cost.analytical.job_costs import least_table, tiled_table
from loadmaster.cost.base import JobTable
from loadmaster.mapping.local_search import upward_rank
from loadmaster.planning.addresses import Addresses, Draft
from loadmaster.planning.assessor import Assessor
from loadmaster.planning.bounds import goal_bounds
from loadmaster.planning.decisions import Bounds, Packing, Score, Solution
from loadmaster.planning.eviction import evict, worth_of_stays
from loadmaster.planning.goal import Goal, refusal, require_room
from loadmaster.planning.joint.problem import Evaluation, JointOptions, JointProblem
from loadmaster.planning.joint.search import JointSearch
from loadmaster.planning.joint.state import ENERGY_ONLY
from loadmaster.planning.packing import PackingCache, Stays
from loadmaster.targets.hardware import Target, core_places
from loadmaster.workloads.job import Workload

_LESS_ROOM = 0.97
"""If what a round found cannot be packed, the joint search goes on with this fraction of the room
used until then."""
_EXTRA_PACKING_ATTEMPTS = 8
"""After the last round, if nothing was packed: retries, each with less of the fast memory."""


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
    joint: JointProblem | None = None
    """The problem of the joint search, with what it remembers, once there was one."""
    _bounds: Bounds | None = field(init=False, default=None)
    _assess: Assessor = field(init=False)
    _addresses: Addresses = field(init=False)

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

    def best(self) -> Solution:
        """The best complete plan. Ctrl-C or the deadline ends the search once there is one."""
        require_room(self.workload, self.target)
        begun = self._separate()
        least = begun.final_score
        # Where every operand needs an address in the fast memory, there may be none for the first.
        holds = self.target.main.in_place and not least.overflow
        found, nearest, history = self._searched(begun.run.start, holds=holds)
        if found is None or least < self.score_of(found):
            draft, _ = self._packed(begun)
            first = None if draft is None or least.overflow else self._addresses.complete(draft)
            complete = [each for each in (found, first) if each is not None]
            found = min(complete, key=self.score_of, default=None)
        if found is None:
            excess = min(nearest, least).overflow
            raise refusal(self.workload, self.target, excess, stopped=self.interrupted)
        return replace(found, search=((0, least), *history))

    def _separate(self) -> Evaluation:
        """Jobs mapped with everything in main memory, then what stays in the fast one along the
        order of that map; where all operands must be copied, both at once."""
        problem, table, goal = self._joint_problem(), self.table, self.goal
        rank = upward_rank(
            [job.after for job in self.workload.jobs], table.compute.min(axis=1).tolist()
        )
        ranked = -np.array(rank, dtype=np.float64)
        keys = [np.arange(len(rank)), ranked]
        if goal.is_timed or goal.latency_network:
            keys.append(np.lexsort((ranked, -goal.urgency)).argsort())
        orders = [np.argsort(key, kind="stable").astype(np.int64) for key in keys]
        policies = [JointOptions()]
        if self.target.main.in_place:
            policies = [JointOptions(filled_fraction=(1.0, 0.0))]
        if goal.needs_energy:
            policies += [replace(policy, energy_weight=ENERGY_ONLY) for policy in policies]
        if goal.urgent:
            policies += [replace(policy, urgent_networks_first=True) for policy in policies]
        every = itertools.product(orders, policies)
        best = min((problem.evaluate(*each) for each in every), key=lambda each: each.final_score)
        if not self.target.main.in_place:
            return best
        mapped = _by_start(best.run.start, len(rank))
        kept = problem.evaluate(mapped, JointOptions())
        return min(best, kept, key=lambda each: each.final_score)

    def retargeted(self, solution: Solution, target: Target) -> tuple[WorkloadPlanner, Solution]:
        """The same jobs, order, stays and addresses on a machine that has at least as much of
        everything; cores have their places there."""
        table = tiled_table(self.workload, target, self.tilings)
        energy = EnergyModel(table, energy_rates(target))
        larger = replace(self, table=table, target=target, energy=energy, joint=None)
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
        energy = EnergyModel(table, self.energy.rates)
        planner = replace(self, table=table, energy=energy, tilings=tilings, joint=None)
        planner._bounds = self._bounds
        return planner

    def quick_score(self) -> Score:
        """An estimate of the score of :meth:`best`: few orders, and no addresses."""
        require_room(self.workload, self.target)
        begun = self._separate()
        own = self.effort.evaluations_of(len(self.workload.jobs))
        samples = min(self.effort.evaluations // 8, own // 4)
        search = self._search(begun.run.start, samples, no_progress)
        return min(begun.final_score, search.run(samples).evaluation.final_score)

    def resumed(self, solution: Solution) -> Solution:
        """A plan no worse than a complete one, by a round of the joint search from its order."""
        samples = self.effort.evaluations // self.effort.packings
        few = replace(self, effort=replace(self.effort, evaluations=samples, packings=1))
        found, _, steps = few._searched(
            solution.timeline.start, self.score_of(solution), holds=True
        )
        self.interrupted |= few.interrupted
        made = max((step[0] for step in solution.search), default=0)
        history = (*solution.search, *((made + more, score) for more, score in steps))
        return replace(found or solution, search=history)

    def _joint_problem(self) -> JointProblem:
        if self.joint is None:
            parts = (self.workload, self.table, self.target, self.goal, self.energy)
            self.joint = JointProblem(*parts)
        return self.joint

    def _search(self, start: Ints, samples: int, progress: Progress) -> JointSearch:
        """The joint search from the order in which jobs start, and from that of the jobs, which
        runs bands depth first."""
        jobs = len(self.workload.jobs)
        return JointSearch(
            self._joint_problem(),
            [_by_start(start, jobs), np.arange(jobs, dtype=np.int64)],
            samples=samples,
            seed=self.seed,
            late=self.is_late,
            progress=progress,
        )

    def score_of(self, solution: Solution) -> Score:
        """What a complete plan is compared by."""
        return self._assess.score_of(solution)

    def timed(self, solution: Solution) -> Solution:
        """What was decided for another machine or other tilings, timed with these."""
        return self._addresses.timed(solution)

    def _searched(
        self, start: Ints, least: Score | None = None, *, holds: bool
    ) -> tuple[Solution | None, Score, tuple[tuple[int, Score], ...]]:
        """What the joint search finds that has addresses and is better than ``least``, the best
        score that it saw, and its improvements.

        It begins with the order in which jobs start. Where another plan ``holds``, Ctrl-C ends it
        at once.
        """
        best: Solution | None = None
        history = []
        samples = self.effort.evaluations_of(len(self.workload.jobs))
        search = self._search(start, samples, self.report)
        nearest = Score(WHOLE_LIMIT, 0, 0, 0)
        try:
            with self.interrupts.breakable() if holds else nullcontext():
                for evaluations, score, solution in self._improvements(
                    search, samples // self.effort.packings, least, holds
                ):
                    nearest = min(nearest, score)
                    if solution is not None:
                        best = solution
                        history.append((evaluations, self.score_of(solution)))
        except KeyboardInterrupt:
            self.interrupted = True
        return best, nearest, tuple(history)

    def _improvements(
        self, search: JointSearch, samples: int, least: Score | None, holds: bool
    ) -> Iterator[tuple[int, Score, Solution | None]]:
        """What every round of the joint search, of so many samples, finds: evaluations so far, the
        score, and the plan, if it has addresses and is better.

        Where no addresses are found, the search goes on with less room.
        """
        packs = False
        rounds = tries = failures = 0
        while True:
            over = rounds >= self.effort.packings or search.interrupted
            self.interrupted |= search.interrupted
            if over and (packs or tries >= _EXTRA_PACKING_ATTEMPTS):
                return
            rounds, tries = (rounds, tries + 1) if over else (rounds + 1, tries)
            found = search.run(0 if over else samples)
            score = found.evaluation.final_score
            yield found.evaluations, score, None
            if score.overflow or (least is not None and score >= least):
                # Packing it would be in vain: with even less room nothing better is found.
                packs = least is not None and not score.overflow
                continue
            candidate, whole = self._packed(found.evaluation)
            solution = (
                None
                if candidate is None
                else self._addresses.complete(candidate, needed=least is None and not holds)
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

    def _packed(self, found: Evaluation) -> tuple[Draft | None, bool]:
        """An evaluation with addresses in the fast memory, and whether all of it: what finds none
        goes back to main memory.

        None where it cannot.
        """
        schedule, placement, timeline = self._joint_problem().decisions(found)
        tensors, jobs = self.workload.tensors, len(self.workload.jobs)
        if len(self.target.memories) == 1:
            return Draft(schedule, placement, timeline, None, found.final_score), True
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
        return Draft(schedule, placement, timeline, packed, found.final_score), not unplaced

    def is_late(self) -> bool:
        """Whether the search should end where it is."""
        self.interrupted |= self.interrupts.requested or self.deadline.passed()
        return self.interrupted


def _by_start(start: Ints, jobs: int) -> Ints:
    """Jobs in the order in which they start."""
    return np.lexsort((np.arange(jobs), start[:jobs])).astype(np.int64)
