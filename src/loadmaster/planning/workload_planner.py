"""From jobs and what they cost to the best complete plan of them: the only place that knows mapping, placement and allocation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.deadline import Deadline
from loadmaster.core.errors import CapacityError, PlanError
from loadmaster.core.interrupts import Interrupts
from loadmaster.core.progress import Progress
from loadmaster.cost.analytical.tiling_front import least_table
from loadmaster.cost.energy_model import EnergyModel
from loadmaster.cost.job_table import JobTable
from loadmaster.planning.assessor import Assessor
from loadmaster.planning.decisions import Bounds, Packed, Packing, Placement, Schedule, Score, Solution, Timeline
from loadmaster.planning.dependencies import as_timed, waits
from loadmaster.planning.goal import Goal, overflow
from loadmaster.planning.joint.problem import JointProblem
from loadmaster.planning.joint.search import Found, JointSearch
from loadmaster.planning.main_memory import refusal, require_room
from loadmaster.planning.packing import most_alive, pack, pack_all
from loadmaster.planning.polish import MOST_JOBS, Decided, neighbours
from loadmaster.planning.residency.evict import evict, worth_of_stays
from loadmaster.planning.residency.resident import keep_resident, optimistic, resident, saved_seconds
from loadmaster.planning.residency.staged import stage_copies
from loadmaster.planning.scheduling.goal_bounds import goal_bounds
from loadmaster.planning.scheduling.list_scheduler import map_jobs
from loadmaster.planning.stays import Stays, retimed
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Workload

SAMPLES = 128
"""Schedules evaluated per round of the separate pipeline."""
_ORDERS_A_ROUND = 128
"""Orders that the joint search evaluates between two attempts to pack the best of them."""
_SEPARATE_ROUNDS = 3
"""Rounds of the separate pipeline, each with the residents that the one before has chosen."""
_ECONOMIES_A_ROUND = 32
"""Orders beside these that it evaluates at its end, in search of a plan that takes hardly longer, and less energy by more than that."""
_GLANCE_SAMPLES = 16
_GLANCE_ORDERS = 16
_LESS_ROOM = 0.97
"""If what a round found cannot be packed, the joint search goes on with this fraction of the room used until then."""
_EXTRA_PACKING_ATTEMPTS = 8
"""After the last round, if nothing was packed: retries, each with less of the fast memory."""
_LATE_PACKING_ATTEMPTS = 4
"""The same retries, once the time limit has passed."""
_MARGINS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5)
"""Fractions of the fast memory that copies fill on a machine that must copy operands, tried in this order until one can be packed."""


@dataclass(frozen=True)
class _Candidate:
    """Decisions with addresses in the fast memory, if they use it; main memory is packed for the best one only."""

    schedule: Schedule
    placement: Placement
    timeline: Timeline
    packed: Packed | None
    score: Score


@dataclass
class WorkloadPlanner:
    """Plans the jobs of one workload: its operators are cut, and how is not asked any more."""

    workload: Workload
    table: JobTable
    target: Target
    goal: Goal
    energy: EnergyModel
    seed: int
    samples: int
    rounds: int
    deadline: Deadline
    report: Progress
    interrupts: Interrupts
    interrupted: bool = False
    tilings: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The tiling of every job, by its position in :data:`~loadmaster.cost.analytical.tiling.EXPECTED`; none given: the first."""
    _bounds: Bounds | None = field(init=False, default=None)
    _assess: Assessor = field(init=False)

    def __post_init__(self) -> None:
        if not len(self.tilings):
            self.tilings = np.zeros(len(self.workload.jobs), dtype=np.int64)
        self._assess = Assessor(self.workload, self.table, self.target, self.goal, self.energy)

    def best(self) -> Solution:
        """The best complete plan; of equals, the one with most on chip. Ctrl-C or the deadline ends the search once there is one."""
        solution = self._searched()
        if not self.is_polished or self.interrupted:
            return solution
        try:
            with self.interrupts.breakable():
                for better in self._polished(solution):
                    solution = better
        except KeyboardInterrupt:
            self.interrupted = True
        return solution

    @property
    def is_polished(self) -> bool:
        """Whether the best plan is changed further, one or two things at a time: jobs are few."""
        return self.target.main.in_place and self.rounds > 0 and len(self.workload.jobs) <= MOST_JOBS

    def _polished(self, solution: Solution) -> Iterator[Solution]:
        """Ever better plans of a few jobs, by one or two changes at a time; each is timed, and packed if it is better."""
        fast, most = self.target.fast, self.rounds * _ORDERS_A_ROUND
        least = self.bounds().objective(self.goal.objective, self.goal.latency_network)
        room, fetches = (0, False) if fast is None else (fast.capacity, self.target.copy is not None)
        best, trials, improves = self.score_of(solution), 0, True

        def around(decided: Decided) -> Iterator[Decided]:
            return neighbours(decided, self.workload, len(self.target.cores), room, fetches)

        at = Decided.of(solution, self.workload)
        while improves:
            improves, seen = False, {at}
            for changed in itertools.chain([at], around(at), (second for first in around(at) for second in around(first))):
                if changed in seen:
                    continue
                trials += 1
                if trials > most or self.is_late() or (best[0] == 0 and best[1] <= least):
                    return
                self.report("polishing", trials / most)
                seen.add(changed)
                better = self._as_decided(changed, best)
                if better is not None:
                    best, at, improves = self.score_of(better), changed, True
                    yield replace(better, search=solution.search)
                    break

    def _as_decided(self, decided: Decided, limit: Score) -> Solution | None:
        """The plan that was decided, if it is better than ``limit`` and has addresses."""
        schedule, placement = decided.schedule(), decided.placement(self.workload)
        try:
            timeline = self._assess.replay(schedule, placement, decided.waits(self.workload))
        except PlanError:
            # What waits for one another never ends.
            return None
        score = self._assess.score(schedule, placement, timeline)
        if score >= limit or overflow(score):
            return None
        packed = self._pack(1, placement, timeline, None) if self.target.fast is not None else None
        if packed is not None and min(packed.offsets, default=0) < 0:
            return None
        solution = self._complete(_Candidate(schedule, placement, timeline, packed, score))
        return solution if solution is not None and self.score_of(solution) < limit else None

    def _searched(self) -> Solution:
        """What the separate pipeline and the joint search find."""
        require_room(self.workload, self.target.main)
        if not self.target.main.in_place:
            return self._copied()
        best = self._candidate(self._map(self._nowhere(), "mapping"), self._nowhere(), None)
        assert best is not None
        try:
            with self.interrupts.breakable():
                for candidate in self._with_residents(best.score):
                    best = min(best, candidate, key=lambda c: (c.score, -int(c.placement.read_fast.sum())))
        except KeyboardInterrupt:
            self.interrupted = True
        if self._joins() and self.deadline.passed():
            return self._hurried(best)
        self.report("allocating", 0.0)
        separate = None if overflow(best.score) else self._complete(best)
        if not self._joins() or (self.interrupted and separate is not None):
            return self._fitting(separate, best.score)
        return self._jointly(best, separate)

    def _hurried(self, begun: _Candidate) -> Solution:
        """What the first orders of the joint search come to, where no time is left for more; what was begun if that is better."""
        found = None
        with suppress(CapacityError):
            found = self._jointly(begun, None)
        if found is not None and (overflow(begun.score) or self.score_of(found) <= begun.score):
            return found
        separate = None if overflow(begun.score) else self._complete(begun)
        return self._fitting(min((each for each in (found, separate) if each is not None), key=self.score_of, default=None), begun.score)

    def bounds(self) -> Bounds:
        """What no plan of these jobs can go below."""
        if self._bounds is None:
            least = least_table(self.workload, self.target)
            self._bounds = goal_bounds(self.workload, least, self.target, self.energy.rates, self.goal)
        return self._bounds

    def tiled(self, table: JobTable, tilings: Ints) -> WorkloadPlanner:
        """A planner of the same jobs with other tilings; bounds are those of any."""
        heir = replace(self, table=table, energy=EnergyModel(table, self.energy.rates), tilings=tilings)
        heir._bounds = self._bounds
        return heir

    def glance(self) -> Score:
        """A score that hints at the one of :meth:`best`: few schedules and orders, and no addresses in main memory."""
        few = replace(self, samples=_GLANCE_SAMPLES)
        begun = few._candidate(few._map(few._nowhere(), "mapping"), few._nowhere(), None) if self.target.main.in_place else few._staged()
        assert begun is not None
        if not self._joins():
            if not self.target.main.in_place:
                return begun.score
            return min((begun, *few._with_residents(begun.score)), key=lambda candidate: candidate.score).score
        search = JointSearch(self._joint_problem(), self._orders_of(begun), samples=_GLANCE_ORDERS, seed=self.seed, late=self.is_late)
        return min(begun.score, search.run(_GLANCE_ORDERS).evaluation.judged)

    def look(self) -> tuple[Score, int]:
        """A score that tells more than a glance: that of a complete plan with one round of the search; and its energy times time."""
        few = replace(self, samples=min(self.samples, _GLANCE_SAMPLES), rounds=min(self.rounds, 1))
        found = few._searched()
        return few.score_of(found), few._assess.energy_of(found.schedule, found.placement, found.timeline) * found.timeline.makespan

    def resumed(self, solution: Solution) -> Solution:
        """A plan no worse than a complete one, by a round of the joint search from its order."""
        if not self._joins():
            return solution
        begun = _Candidate(solution.schedule, solution.placement, solution.timeline, None, self.score_of(solution))
        few = replace(self, rounds=1)
        found = few._jointly(begun, solution)
        self.interrupted |= few.interrupted
        made = max((step[0] for step in solution.search), default=0)
        return replace(found, search=(*solution.search, *((made + more, score) for more, score in found.search[1:])))

    def _joins(self) -> bool:
        fast = self.target.fast
        return fast is not None and fast.capacity > 0 and self.rounds > 0

    def _joint_problem(self) -> JointProblem:
        return JointProblem(self.workload, self.table, self.target, self.goal, self.energy)

    def _orders_of(self, candidate: _Candidate) -> list[Ints]:
        """Orders that the joint search begins with: the separate plan's, and that of the jobs, which runs bands depth first."""
        start = candidate.timeline.start[: len(self.workload.jobs)]
        own = np.arange(len(start), dtype=np.int64)
        return [np.lexsort((own, start)).astype(np.int64), own]

    def score_of(self, solution: Solution) -> Score:
        """What a complete plan is compared by."""
        return self._assess.score_of(solution)

    def _jointly(self, begun: _Candidate, separate: Solution | None) -> Solution:
        """Go on from the separate plan, whether main memory can hold it or not, to the best one that has addresses."""
        best, nearest = separate, begun.score
        history = [] if separate is None else [(0, self.score_of(separate))]
        problem = self._joint_problem()
        samples = self.rounds * _ORDERS_A_ROUND
        search = JointSearch(problem, self._orders_of(begun), samples=samples, seed=self.seed, late=self.is_late, progress=self.report)
        try:
            with self.interrupts.breakable() if separate is not None else nullcontext():
                for evaluations, score, solution in self._improvements(problem, search, separate):
                    nearest = min(nearest, score)
                    if solution is not None:
                        best = solution
                        history.append((evaluations, self.score_of(solution)))
                best = self._economised(problem, search, best, separate)
        except KeyboardInterrupt:
            self.interrupted = True
        return replace(self._fitting(best, nearest), search=tuple(history))

    def _economised(self, problem: JointProblem, search: JointSearch, best: Solution | None, separate: Solution | None) -> Solution | None:
        """A plan of less energy times time that hardly takes longer, and no longer than the separate one: that, or one that is found."""
        if best is None or self.goal.needs_energy or self.is_late() or not self._assess.moves_much(best):
            return best
        goal = self.goal.nearly(self.score_of(best), None if separate is None else self.score_of(separate))
        likewise = replace(self, goal=goal)
        best = min((best, separate or best), key=likewise.score_of)
        search.economise(goal)
        found, least = search.run(self.rounds * _ECONOMIES_A_ROUND), likewise.score_of(best)
        if found.evaluation.judged >= least:
            return best
        candidate, _ = likewise._packed(problem, found)
        solution = None if candidate is None else likewise._complete(candidate, needed=False)
        return best if solution is None or likewise.score_of(solution) >= least else solution

    def _improvements(
        self, problem: JointProblem, search: JointSearch, separate: Solution | None
    ) -> Iterator[tuple[int, Score, Solution | None]]:
        """What every round of the joint search finds: evaluations so far, the score, and the plan, if it has addresses and is better.

        Where no addresses are found, the search goes on with less room.
        """
        least, failures, packs = None if separate is None else self.score_of(separate), 0, False
        rounds = tries = 0
        while True:
            over = rounds >= self.rounds or search.interrupted
            self.interrupted |= search.interrupted
            if over and (packs or tries >= (_LATE_PACKING_ATTEMPTS if self.is_late() else _EXTRA_PACKING_ATTEMPTS)):
                return
            rounds, tries = (rounds, tries + 1) if over else (rounds + 1, tries)
            found = search.run(0 if over else _ORDERS_A_ROUND)
            score = found.evaluation.judged
            yield found.evaluations, score, None
            if overflow(score) or (least is not None and score >= least):
                # Packing it would be in vain: with even less room nothing better is found.
                packs = least is not None and not overflow(score)
                continue
            candidate, whole = self._packed(problem, found)
            solution = None if candidate is None else self._complete(candidate, needed=least is None)
            # Once it is late, what has found no address may stay in main memory.
            packs = solution is not None and (whole or self.is_late())
            if not packs:
                # Where it failed before, it is far from fitting.
                failures += 1
                less = _LESS_ROOM**failures
                search.fill_less(**{"main" if candidate is not None and solution is None else "fast": less})
            if solution is None:
                continue
            score = self.score_of(solution)
            if least is None or score < least:
                least = score
                yield found.evaluations, score, solution

    def _packed(self, problem: JointProblem, found: Found) -> tuple[_Candidate | None, bool]:
        """What was found, with addresses in the fast memory, and whether all of it: what finds none goes back to main memory.

        None where it cannot.
        """
        self.report("allocating", 0.0)
        schedule, placement, timeline = problem.decisions(found.evaluation)
        tensors, jobs = self.workload.tensors, len(self.workload.jobs)
        worth = worth_of_stays([r for r in placement.residences if r.memory == 1], tensors, self.table, schedule)
        packed = self._pack(1, placement, timeline, worth)
        homeless = [r for r, offset in zip(packed.residences, packed.offsets, strict=True) if offset < 0]
        if homeless and not self.target.main.in_place:
            return None, False
        if homeless:
            placement, timeline = evict(homeless, placement, timeline, tensors, self.table, jobs)
            placed = [offset for offset in packed.offsets if offset >= 0]
            packed = Stays.of(self.workload, placement, timeline, 1).packed(Packing(np.array(placed, dtype=np.int64), 0, packed.load))
        return _Candidate(schedule, placement, timeline, packed, found.evaluation.judged), not homeless

    def _nowhere(self) -> Mask:
        return np.zeros(len(self.workload.tensors), dtype=np.bool_)

    def _with_residents(self, limit: Score) -> Iterator[_Candidate]:
        """Plans that use the fast memory and are no worse than ``limit``, each with what the one before taught."""
        if self.target.fast is None:
            return
        hoped = optimistic(self.workload.tensors, self.target.fast.capacity)
        for number in range(_SEPARATE_ROUNDS):
            schedule = self._map(hoped, f"mapping, round {number + 1} of {_SEPARATE_ROUNDS}")
            timeline = self._assess.replay(schedule, resident(self.workload.jobs, self.workload.tensors, hoped))
            # Residents chosen for hoped-for times are chosen again for the times that came of it.
            for _ in range(2):
                candidate = self._candidate(schedule, self._choose(schedule, timeline), limit)
                if candidate is None:
                    return
                yield candidate
                if self.is_late():
                    return
                limit, timeline = min(limit, candidate.score), candidate.timeline
                chosen = candidate.placement.read_fast
            if np.array_equal(chosen, hoped):
                return
            hoped = chosen

    def is_late(self) -> bool:
        """Whether the search should end where it is."""
        self.interrupted |= self.interrupts.requested or self.deadline.passed()
        return self.interrupted

    def _seconds(self) -> float:
        """What is left for packing before it should do with the least effort."""
        return 0.0 if self.is_late() else self.deadline.left()

    def _choose(self, schedule: Schedule, timeline: Timeline) -> Mask:
        return keep_resident(self.workload.jobs, self.workload.tensors, self.table, self.target, schedule, timeline)

    def _map(self, in_fast: Mask, stage: str) -> Schedule:
        placement = resident(self.workload.jobs, self.workload.tensors, in_fast)

        def progress(_: str, share: float) -> None:
            self.report(stage, share)
            if self.interrupts.requested:
                raise KeyboardInterrupt

        schedule = map_jobs(
            self.workload.jobs,
            self._assess.times(placement),
            samples=1 if self.is_late() else self.samples,
            seed=self.seed,
            deadline=self.deadline,
            progress=progress,
            **self._assess.wishes(placement),
        )
        self.interrupted |= schedule.interrupted
        return schedule

    def _candidate(self, schedule: Schedule, in_fast: Mask, limit: Score | None) -> _Candidate | None:
        """Send to main memory what finds no address in the fast one, until all the rest does; None once it is worse than ``limit``."""
        self.report("allocating", 0.0)
        value = saved_seconds(self.workload.tensors, self.table, self.target, schedule)
        while True:
            placement = resident(self.workload.jobs, self.workload.tensors, in_fast)
            timeline = self._assess.replay(schedule, placement)
            score = self._assess.score(schedule, placement, timeline)
            if limit is not None and score > limit:
                return None
            if not in_fast.any() or self.target.fast is None:
                return _Candidate(schedule, placement, timeline, None, score)
            if limit is not None and self.is_late():
                return None
            packed = self._pack(1, placement, timeline, value[[r.tensor for r in placement.residences if r.memory == 1]])
            homeless = [r.tensor for r, offset in zip(packed.residences, packed.offsets, strict=True) if offset < 0]
            if not homeless:
                return _Candidate(schedule, placement, timeline, packed, score)
            in_fast = in_fast.copy()
            in_fast[homeless] = False

    def _complete(self, candidate: _Candidate, *, needed: bool = True) -> Solution | None:
        """Give everything in main memory its address too; None if it finds none, in the time that is left unless a plan is ``needed``."""
        main = self._pack_main(candidate, needed)
        if main is None:
            return None
        packed: tuple[Packed, ...] = (main,)
        if self.target.fast is not None:
            packed = (main, candidate.packed or self._pack(1, candidate.placement, candidate.timeline, None))
        after = waits(self.workload.jobs, candidate.schedule, candidate.placement, packed)
        # Addresses were chosen for one timeline; what then waits for what makes the final one.
        timeline = self._assess.replay(candidate.schedule, candidate.placement, after)
        score = self._assess.score(candidate.schedule, candidate.placement, timeline)
        if score > candidate.score:
            held = as_timed(after, candidate.timeline)
            as_found = self._assess.replay(candidate.schedule, candidate.placement, held)
            if self._assess.score(candidate.schedule, candidate.placement, as_found) < score:
                after, timeline = held, as_found
        packed = tuple(retimed(part, timeline) for part in packed)
        return Solution(candidate.schedule, candidate.placement, timeline, packed, after)

    def timed(self, solution: Solution) -> Solution:
        """What was decided for a smaller machine, timed on this one: as early as the order allows, or if that is slower, in its rhythm."""
        schedule, placement, after = solution.schedule, solution.placement, solution.after
        timeline = self._assess.replay(schedule, placement, after)
        held = as_timed(after, solution.timeline)
        as_found = self._assess.replay(schedule, placement, held)
        if self._assess.score(schedule, placement, as_found) < self._assess.score(schedule, placement, timeline):
            after, timeline = held, as_found
        packed = [retimed(part, timeline) for part in solution.packed]
        nothing = Packed((), [], [], [], [], 0)
        packed += [nothing] * (len(self.target.memories) - len(packed))
        return Solution(schedule, placement, timeline, tuple(packed), after)

    def _copied(self) -> Solution:
        """The best plan on a machine that must copy all operands: with each copied as early as space allows, or found jointly."""
        begun, found = self._staged(), next(self._staged_and_packed(), None)
        separate = None if found is None or overflow(found.score) else self._complete(found)
        if not self._joins() or (self.interrupted and separate is not None):
            return self._fitting(separate, begun.score)
        return self._jointly(begun, separate)

    def _staged_and_packed(self) -> Iterator[_Candidate]:
        """Fill less and less of the fast memory, and then wait for copies back, until all has addresses."""
        for wait, margin in itertools.product((False, True), _MARGINS):
            found = self._staged(margin, wait)
            # Without a packing there may be no plan: this takes the time that it takes.
            packed = self._pack(1, found.placement, found.timeline, None, math.inf)
            if min(packed.offsets, default=0) >= 0:
                yield replace(found, packed=packed)

    def _staged(self, margin: float = 1.0, wait: bool = False) -> _Candidate:
        """Bring every operand to the fast memory, for jobs that run in turn on one core: of several, the one that is soonest done."""
        assert self.target.fast is not None
        jobs, tensors = self.workload.jobs, self.workload.tensors
        schedule = self._in_turn
        placement = stage_copies(jobs, tensors, schedule.order.tolist(), self.target.fast, margin=margin, wait_for_copies_back=wait)
        timeline = self._assess.replay(schedule, placement)
        return _Candidate(schedule, placement, timeline, None, self._assess.score(schedule, placement, timeline))

    @cached_property
    def _in_turn(self) -> Schedule:
        everywhere = np.ones(len(self.workload.tensors), dtype=np.bool_)
        if len(self.target.cores) == 1:
            return self._map(everywhere, "mapping")
        order = np.arange(len(self.workload.jobs), dtype=np.int64)
        duration = self._assess.times(resident(self.workload.jobs, self.workload.tensors, everywhere)).duration.sum(axis=0)
        fastest = int(duration.argmin())
        return Schedule(np.full(len(order), fastest, dtype=np.int32), order, int(duration[fastest]), 1)

    def _pack(
        self, memory_index: int, placement: Placement, timeline: Timeline, value: Floats | None, seconds: float | None = None
    ) -> Packed:
        memory = self.target.memories[memory_index]
        stays = Stays.of(self.workload, placement, timeline, memory_index)
        room = {"capacity": memory.capacity, "alignment": memory.alignment}
        seconds = self._seconds() if seconds is None else seconds
        if self.target.main.in_place:
            return stays.packed(pack(stays.start, stays.end, stays.sizes, **room, value=value, seconds=seconds))
        # All operands have to be there: what leaves any out is no packing.
        packing = pack_all(stays.start, stays.end, stays.sizes, **room, seconds=seconds)
        return stays.packed(packing or Packing(np.full(len(stays.sizes), -1, dtype=np.int64), 0, 0))

    def _pack_main(self, candidate: _Candidate, needed: bool) -> Packed | None:
        """Addresses in main memory; if they are needed and little effort finds none, with all effort."""
        main = self.target.main
        stays = Stays.of(self.workload, candidate.placement, candidate.timeline, 0)
        # How much of main memory a plan takes is of interest, but not every byte of it.
        load = most_alive(stays.start, stays.end, stays.sizes)
        for seconds in dict.fromkeys((self._seconds(), math.inf) if needed else (self._seconds(),)):
            room = {"capacity": main.capacity, "alignment": main.alignment, "enough": load + load // 200}
            result = pack_all(stays.start, stays.end, stays.sizes, **room, seconds=seconds)
            if result is not None:
                return stays.packed(result)
        return None

    def _fitting(self, solution: Solution | None, nearest: Score) -> Solution:
        """A solution, if there is one; else say how near to fitting into main memory any came."""
        if solution is None:
            raise refusal(self.workload, self.target, overflow(nearest), stopped=self.interrupted)
        return solution
