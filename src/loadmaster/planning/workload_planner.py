"""Plans the jobs of one workload: joint search, addresses, and the separate pipeline it starts
from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.effort import Effort
from loadmaster.core.progress import Deadline, Interrupts, Progress, no_progress
from loadmaster.core.task_graph import upward_rank
from loadmaster.cost.analytical.job_costs import least_table
from loadmaster.cost.base import JobTable
from loadmaster.planning.addresses import Addresses
from loadmaster.planning.bounds import goal_bounds
from loadmaster.planning.decisions import Bounds, Score, Solution
from loadmaster.planning.goal import refusal, require_room
from loadmaster.planning.joint.problem import Evaluation, JointOptions, JointProblem
from loadmaster.planning.joint.search import JointSearch
from loadmaster.planning.joint.state import ENERGY_ONLY
from loadmaster.planning.problem import PlanProblem
from loadmaster.targets.hardware import Target, core_places

_LESS_ROOM = 0.97
"""Factor by which the usable fast memory shrinks each time a round's result cannot be packed."""
_MOST_TRIES = 8
"""Most times that a round's result is packed, each time with less room."""


@dataclass
class WorkloadPlanner:
    """Plans the jobs of one workload, whose cuts are already chosen."""

    problem: PlanProblem
    seed: int
    effort: Effort
    deadline: Deadline
    report: Progress
    interrupts: Interrupts
    interrupted: bool = False
    _bounds: Bounds | None = field(init=False, default=None)

    @cached_property
    def _joint(self) -> JointProblem:
        """The problem of the joint search, with its cached scores."""
        return JointProblem(self.problem)

    @cached_property
    def _addresses(self) -> Addresses:
        """The packing of the memories."""
        return Addresses(
            self.problem,
            lambda: 0.0 if self.is_late() else self.deadline.left(),
            self.effort,
        )

    def best(self) -> Solution:
        """Return the best complete plan. Ctrl-C or the deadline ends the search once a plan
        exists."""
        target = self.problem.target
        require_room(self.problem.workload, target)
        begun = self._separate()
        least = nearest = begun[0].final_score
        # Where all operands must be in the fast memory, the first plan may find no addresses.
        holds = target.main.in_place and not least.overflow
        found: Solution | None = None
        history = [(0, least)]
        try:
            # With a plan at hand, Ctrl-C ends the search at once.
            with self.interrupts.breakable() if holds else nullcontext():
                for evaluations, score, solution in self._improvements(begun[0].run.start, holds):
                    nearest = min(nearest, score)
                    if solution is not None:
                        found = solution
                        history.append((evaluations, self.score_of(solution)))
        except KeyboardInterrupt:
            self.interrupted = True
        for each in begun:
            if each.final_score.overflow or (
                found is not None and each.final_score >= self.score_of(found)
            ):
                continue
            first, _ = self._completed(each)
            found = min(filter(None, (found, first)), key=self.score_of, default=None)
        if found is None:
            raise refusal(self.problem.workload, target, nearest.overflow, stopped=self.interrupted)
        return replace(found, search=tuple(history))

    def _separate(self) -> list[Evaluation]:
        """Map jobs with all tensors in main memory, then fill the fast memory along the same order;
        return both, the better first. Where operands must be copied, both are done at once."""
        problem, goal = self._joint, self.problem.goal
        in_place = problem.target.main.in_place
        rank = upward_rank(
            [job.after for job in problem.workload.jobs],
            problem.table.compute.min(axis=1).tolist(),
        )
        ranked = -np.array(rank, dtype=np.float64)
        keys = [np.arange(len(rank)), ranked]
        if goal.is_timed or goal.latency_network:
            keys.append(np.lexsort((ranked, -goal.urgency)).argsort())
        orders = [np.argsort(key, kind="stable").astype(np.int64) for key in keys]
        policies = [JointOptions(filled_fraction=(1.0, float(not in_place)))]
        if goal.needs_energy:
            policies += [replace(policy, energy_weight=ENERGY_ONLY) for policy in policies]
        if goal.urgent:
            policies += [replace(policy, urgent_networks_first=True) for policy in policies]
        every = itertools.product(orders, policies)
        best = min((problem.evaluate(*each) for each in every), key=lambda each: each.final_score)
        if not in_place:
            return [best]
        mapped = _by_start(best.run.start, len(rank))
        kept = problem.evaluate(mapped, JointOptions())
        return sorted((best, kept), key=lambda each: each.final_score)

    def retargeted(self, solution: Solution, target: Target) -> tuple[WorkloadPlanner, Solution]:
        """Return the same schedule, residences and addresses, timed on a machine that is at least
        as large in every figure, and its planner."""
        here = self.problem.target
        larger = replace(self, problem=self.problem.on(target))
        places = np.array(core_places(here, target), dtype=np.int32)
        schedule = replace(solution.schedule, core=places[solution.schedule.core])
        # A memory that the smaller machine lacks is not used.
        more = len(target.memories) - len(here.memories)
        used = np.pad(solution.placement.used, ((0, more), (0, 0)))
        placement = replace(solution.placement, used=used)
        return larger, larger.timed(replace(solution, schedule=schedule, placement=placement))

    def bounds(self) -> Bounds:
        """Lower bounds for every plan of these jobs."""
        if self._bounds is None:
            own = self.problem
            least = least_table(own.workload, own.target)
            self._bounds = goal_bounds(own.workload, least, own.target, own.energy.rates, own.goal)
        return self._bounds

    def tiled(self, table: JobTable, tilings: Ints) -> WorkloadPlanner:
        """A planner of the same jobs with other tilings; bounds are those of any."""
        planner = replace(self, problem=self.problem.tiled(table, tilings))
        planner._bounds = self._bounds
        return planner

    def quick_score(self) -> Score:
        """Estimate the score of :meth:`best` from few evaluations and without addresses."""
        require_room(self.problem.workload, self.problem.target)
        begun = self._separate()[0]
        samples = min(self.effort.evaluations // 12, self._samples // 4)
        search = self._search(begun.run.start, samples, no_progress)
        return min(begun.final_score, search.run(samples).evaluation.final_score)

    @property
    def _samples(self) -> int:
        """Evaluations of a whole search."""
        return self.effort.evaluations_of(len(self.problem.workload.jobs))

    def _search(self, start: Ints, samples: int, progress: Progress) -> JointSearch:
        """Return the joint search that starts from the order of ``start`` times and from the order
        of job numbers, which runs bands depth first."""
        jobs = len(self.problem.workload.jobs)
        return JointSearch(
            self._joint,
            [_by_start(start, jobs), np.arange(jobs, dtype=np.int64)],
            samples=samples,
            seed=self.seed,
            late=self.is_late,
            progress=progress,
        )

    def score_of(self, solution: Solution) -> Score:
        """Score of a complete plan."""
        return self.problem.score_of(solution)

    def timed(self, solution: Solution) -> Solution:
        """Time a plan that was made for another machine or other tilings."""
        return self._addresses.timed(solution)

    def _improvements(
        self, start: Ints, holds: bool
    ) -> Iterator[tuple[int, Score, Solution | None]]:
        """Yield, for each round of the joint search from the order of ``start`` times: evaluations
        so far, the score, and the plan if it has addresses and beats the best so far.

        Without addresses the search continues with less memory, from the best state so far.
        ``holds``: there is a plan already.
        """
        search = self._search(start, self._samples, self.report)
        failures, rounds = 0, self.effort.packings
        least: Score | None = None
        for _ in range(rounds):
            found = search.run(self._samples // rounds)
            for _ in range(_MOST_TRIES):
                score = found.evaluation.final_score
                yield found.evaluations, score, None
                if score.overflow or (least is not None and score >= least):
                    # No better than the best plan, or too large: with less room it only gets worse.
                    break
                needed = least is None and not holds
                solution, whole = self._completed(found.evaluation, needed=needed)
                if solution is None or not whole:
                    failures += 1
                    search.shrink_capacity(int(not whole), _LESS_ROOM**failures)
                if solution is not None:
                    score = self.score_of(solution)
                    if least is None or score < least:
                        least = score
                        yield found.evaluations, score, solution
                    break
                found = search.run(0)
            self.interrupted |= search.interrupted
            if search.interrupted:
                return

    def _completed(self, found: Evaluation, *, needed: bool = True) -> tuple[Solution | None, bool]:
        """Give the residences of an evaluation addresses; return the complete plan, None if none
        are found, and whether all of the fast memory's have some there."""
        decisions = self._joint.decisions(found)
        return self._addresses.complete(*decisions, found.final_score, needed=needed)

    def is_late(self) -> bool:
        """Whether the search should stop now."""
        self.interrupted |= self.interrupts.requested or self.deadline.passed()
        return self.interrupted


def _by_start(start: Ints, jobs: int) -> Ints:
    """Job numbers sorted by start time."""
    return np.lexsort((np.arange(jobs), start[:jobs])).astype(np.int64)
