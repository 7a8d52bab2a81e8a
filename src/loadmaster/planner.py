"""From networks and a target to a plan: the only place that knows mapping, placement and allocation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.allocation import pack
from loadmaster.assemble import assemble
from loadmaster.cost import job_table
from loadmaster.decisions import Packed, Placement, Residence, Schedule, Solution, Timeline
from loadmaster.errors import CapacityError
from loadmaster.graph import Graph
from loadmaster.hardware import Memory, Target
from loadmaster.job import JobTable, Workload
from loadmaster.lowering import lower
from loadmaster.mapping import makespan_bound, map_jobs
from loadmaster.placement import keep_resident, optimistic, resident, saved_seconds, stage_copies
from loadmaster.plans import Plan
from loadmaster.simulate import replay
from loadmaster.timing import JobTimes, job_times
from loadmaster.units import format_bytes

SAMPLES = 128
"""Schedules evaluated per round."""
_ROUNDS = 3
_MARGINS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5)

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done."""

Mask = NDArray[np.bool_]


def plan(
    graphs: Sequence[Graph],
    target: Target,
    *,
    mini_batches: int = 1,
    seed: int = 0,
    samples: int = SAMPLES,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Plan networks together on a target.

    Lowers them to jobs, costs every job on every core, then maps, places, allocates and simulates: first with everything in main
    memory, then with activations kept in the fast memory, a few rounds, each mapping for the placement that the last one ended
    with. The fastest plan is returned, so it is never slower than the one that leaves everything in main memory.

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
        Schedules evaluated per round; the budget that decides the answer.
    time_limit : float, optional
        Seconds after which the search over schedules stops where it is; the plan's notes then say so, as they do after Ctrl-C.
    progress : callable, optional
        Called with the stage and the share of it that is done.

    Raises
    ------
    CapacityError
        If main memory cannot hold the networks, or a machine that must copy operands cannot hold those of one job.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    report = progress or (lambda stage, share: None)
    report("lowering", 0.0)
    workload = lower(graphs, target, mini_batches=mini_batches)
    report("costing", 0.0)
    table = job_table(workload, target)
    planner = _Planner(workload, table, target, seed, samples, deadline, report)
    best = planner.best()
    report("bounding", 0.0)
    bound = makespan_bound(workload.jobs, workload.tensors, table, target)
    report("assembling", 0.0)
    return assemble(workload, table, target, best, bound, seed, planner.notes())


@dataclass
class _Planner:
    workload: Workload
    table: JobTable
    target: Target
    seed: int
    samples: int
    deadline: float | None
    report: Progress
    interrupted: bool = False

    def best(self) -> Solution:
        """The fastest complete plan; of equals, the one with most on chip. Ctrl-C ends the search once there is one."""
        best: Solution | None = None
        try:
            for candidate in self.candidates():
                if best is None or _rank(candidate) < _rank(best):
                    best = candidate
        except KeyboardInterrupt:
            self.interrupted = True
            if best is None:
                raise
        assert best is not None
        return best

    def candidates(self) -> Iterator[Solution]:
        """Complete plans, each with what the one before taught."""
        if not self.target.main.in_place:
            yield self._staged()
            return
        nowhere = np.zeros(len(self.workload.tensors), dtype=np.bool_)
        yield self._settle(self._map(nowhere, "mapping"), nowhere)
        if self.target.fast is None:
            return
        hoped = optimistic(self.workload.tensors, self.target.fast.capacity)
        for number in range(_ROUNDS):
            schedule = self._map(hoped, f"mapping, round {number + 1} of {_ROUNDS}")
            timeline = self._replay(schedule, resident(self.workload.jobs, self.workload.tensors, hoped))
            candidate = self._settle(schedule, self._choose(schedule, timeline))
            yield candidate
            # Residents chosen for hoped-for times are chosen again for the times that came of it.
            candidate = self._settle(schedule, self._choose(schedule, candidate.timeline))
            yield candidate
            if self.interrupted or np.array_equal(candidate.placement.read_fast, hoped):
                return
            hoped = candidate.placement.read_fast

    def _choose(self, schedule: Schedule, timeline: Timeline) -> Mask:
        return keep_resident(self.workload.jobs, self.workload.tensors, self.table, self.target, schedule, timeline)

    def _map(self, in_fast: Mask, stage: str) -> Schedule:
        times = self._times(resident(self.workload.jobs, self.workload.tensors, in_fast))

        def progress(done: int, total: int, _: int) -> None:
            self.report(stage, done / total)

        samples = 1 if self.interrupted else self.samples
        schedule = map_jobs(self.workload.jobs, times, samples=samples, seed=self.seed, deadline=self.deadline, progress=progress)
        self.interrupted |= schedule.interrupted
        return schedule

    def _times(self, placement: Placement) -> JobTimes:
        return job_times(self.table, self.target, placement.read_fast, placement.write_fast, placement.write_main)

    def _replay(self, schedule: Schedule, placement: Placement) -> Timeline:
        return replay(self.workload.jobs, self.workload.tensors, self._times(placement), self.target, schedule, placement)

    def _settle(self, schedule: Schedule, in_fast: Mask) -> Solution:
        """Send to main memory what finds no address in the fast one, until all the rest does."""
        self.report("allocating", 0.0)
        value = saved_seconds(self.workload.tensors, self.table, self.target, schedule)
        while True:
            placement = resident(self.workload.jobs, self.workload.tensors, in_fast)
            timeline = self._replay(schedule, placement)
            packed = self._pack(placement, timeline, value)
            homeless = {r.tensor for part in packed[1:] for r, offset in zip(part.residences, part.offsets, strict=True) if offset < 0}
            if not homeless:
                return Solution(schedule, placement, timeline, packed)
            in_fast = in_fast.copy()
            in_fast[list(homeless)] = False

    def _staged(self) -> Solution:
        """Bring every operand to the fast memory; fill less of it if a full one cannot be packed."""
        assert self.target.fast is not None
        jobs, tensors = self.workload.jobs, self.workload.tensors
        schedule = self._map(np.ones(len(tensors), dtype=np.bool_), "mapping")
        for margin in _MARGINS:
            placement = stage_copies(jobs, tensors, schedule.order.tolist(), self.target.fast, margin=margin)
            timeline = self._replay(schedule, placement)
            packed = self._pack(placement, timeline, None)
            if min(packed[1].offsets, default=0) >= 0:
                return Solution(schedule, placement, timeline, packed)
        raise CapacityError(f"{self.target.fast.name}: operands fit by size, but no packing without gaps was found: enlarge its capacity")

    def _pack(self, placement: Placement, timeline: Timeline, value: NDArray[np.float64] | None) -> tuple[Packed, ...]:
        packed = []
        for index, memory in enumerate(self.target.memories):
            residences = [r for r in placement.residences if r.memory == index]
            packed.append(self._pack_memory(memory, residences, timeline, value))
        if min(packed[0].offsets, default=0) < 0:
            self._explain_main(packed[0])
        return tuple(packed)

    def _pack_memory(self, memory: Memory, residences: list[Residence], timeline: Timeline, value: NDArray[np.float64] | None) -> Packed:
        sizes = np.array([self.workload.tensors[r.tensor].bytes for r in residences], dtype=np.int64)
        start = np.array([timeline.start[r.writer] if r.writer >= 0 else 0 for r in residences], dtype=np.int64)
        end = np.array([_end_of(r, timeline) for r in residences], dtype=np.int64)
        worth = None if value is None else value[[r.tensor for r in residences]]
        result = pack(start, end, sizes, capacity=memory.capacity, alignment=memory.alignment, value=worth)
        return Packed(tuple(residences), start.tolist(), end.tolist(), result.offsets.tolist(), sizes.tolist(), result.load)

    def _explain_main(self, packed: Packed) -> None:
        main = self.target.main
        excess = packed.load - main.capacity
        raise CapacityError(
            f"{main.name} cannot hold the networks: {format_bytes(packed.load)} required at one instant, "
            f"{format_bytes(main.capacity)} available, "
            f"{format_bytes(excess) + ' in excess' if excess > 0 else 'and no packing without gaps was found'}: "
            f"plan fewer networks or mini-batches, or enlarge {main.name}.capacity"
        )

    def notes(self) -> list[str]:
        """What a reader of the plan should know about how it came to be."""
        notes = list(_streaming_notes(self.workload, self.target))
        if self.interrupted:
            notes.append("the search over schedules was stopped early, by a time limit or an interrupt: this is the best plan so far")
        return notes


def _rank(solution: Solution) -> tuple[int, int]:
    return solution.timeline.makespan, -int(solution.placement.read_fast.sum())


def _end_of(residence: Residence, timeline: Timeline) -> int:
    """Picosecond at which a stay ends; a tensor that nobody reads is there while it is written."""
    if residence.to_the_end:
        return timeline.makespan
    tasks = [task for task in (residence.writer, *residence.users) if task >= 0]
    return max((int(timeline.end[task]) for task in tasks), default=0)


def _streaming_notes(workload: Workload, target: Target) -> Iterator[str]:
    """Name the jobs that no fast memory of this size can serve, and those that were cut so that it can."""
    if target.fast is None:
        return
    fast = target.fast
    tiles = sum(job.tile == 0 and job.tiles > 1 for job in workload.jobs)
    if tiles:
        yield f"{tiles} operators were split into tiles, because their operands exceed {fast.name} ({format_bytes(fast.capacity)})"
    sizes = [(sum(operand.bytes for operand in (*job.reads, *job.writes)), job.name) for job in workload.jobs]
    large = sorted((item for item in sizes if item[0] > fast.capacity), reverse=True)
    if large and target.main.in_place:
        yield (
            f"{len(large)} jobs stream from {target.main.name}, because their operands exceed {fast.name} ({format_bytes(fast.capacity)}): "
            f"the largest is {large[0][1]} with {format_bytes(large[0][0])}"
        )
