"""Gives the residences of a plan addresses, and simulates the plan with the dependencies that
address reuse implies."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from loadmaster.core.effort import Effort
from loadmaster.planning.decisions import (
    Packed,
    Placement,
    Residence,
    Schedule,
    Score,
    Solution,
    Timeline,
)
from loadmaster.planning.packing import PackingCache, Stays, evict, most_alive, retimed
from loadmaster.planning.problem import PlanProblem
from loadmaster.workloads.job import Job


def reuse_pairs(
    start: Sequence[int], offset: Sequence[int], size: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs ``(earlier, later)`` of buffers such that ``later`` reuses bytes whose last owner
    was ``earlier``.

    Buffers take their addresses in order of ``start``. Owners before the last one are not listed:
    they ended before the last owner began. O(n log n) besides insertions into the list of ranges.
    """
    # Ranges of addresses by address, disjoint: first byte, the one after the last, and owner.
    lows: list[int] = []
    highs: list[int] = []
    owners: list[int] = []
    for buffer in sorted(range(len(start)), key=lambda i: (start[i], i)):
        low, high = offset[buffer], offset[buffer] + size[buffer]
        first = bisect_left(highs, low)
        if first < len(highs) and highs[first] == low:
            first += 1
        last = first
        kept = []
        while last < len(lows) and lows[last] < high:
            yield owners[last], buffer
            if lows[last] < low:
                kept.append((lows[last], low, owners[last]))
            if highs[last] > high:
                kept.append((high, highs[last], owners[last]))
            last += 1
        kept.append((low, high, buffer))
        kept.sort(key=itemgetter(0))
        lows[first:last], highs[first:last], owners[first:last] = zip(*kept, strict=True)


After = tuple[tuple[int, ...], ...]


def waits(
    jobs: Sequence[Job], schedule: Schedule, placement: Placement, packed: Sequence[Packed]
) -> After:
    """Dependencies of every task (jobs, then copies): the tasks that must have ended before it
    starts, besides those before it on its core.

    With them the plan is correct whatever the durations are: a stay begins only when all users of
    the stays that had its addresses have ended. O(tasks + n log n) for n stays.
    """
    after = [set(job.after) for job in jobs] + [set(copy.after) for copy in placement.copies]
    for number, copy in enumerate(placement.copies):
        for job in copy.before:
            after[job].add(len(jobs) + number)
    # A copy runs on no core of a job.
    core = [*schedule.core.tolist(), *range(-1, -1 - len(placement.copies), -1)]
    for part in packed:
        for earlier, later in reuse_pairs(part.start, part.offsets, part.sizes):
            waiting = part.residences[later].writer
            before = part.residences[earlier]
            here = core[waiting]
            # The order on the task's own core needs no further dependency.
            after[waiting].update(
                [
                    task
                    for task in (before.writer, *before.users)
                    if task >= 0 and core[task] != here
                ]
            )
    return tuple([tuple(sorted(tasks)) for tasks in after])


def as_timed(after: After, timeline: Timeline) -> After:
    """Add dependencies so that no task starts earlier than in a timeline: each task also waits for
    a task that ends when it starts there.

    Tasks that start as early as possible may compete for the links and end later than in the
    timeline.
    """
    ends = timeline.end.tolist()
    ending = {end: task for task, end in reversed(list(enumerate(ends)))}
    return tuple(
        tuple(sorted({*tasks, ending[start]}))
        if start in ending and all(ends[task] < start for task in tasks)
        else tasks
        for tasks, start in zip(after, timeline.start.tolist(), strict=True)
    )


@dataclass(frozen=True)
class Addresses:
    """Packs the memories of a workload's plans; ``seconds`` returns the time left, after which the
    least effort is used."""

    problem: PlanProblem
    seconds: Callable[[], float]
    packings: PackingCache
    effort: Effort = Effort.NORMAL

    def complete(
        self,
        schedule: Schedule,
        placement: Placement,
        timeline: Timeline,
        score: Score,
        *,
        needed: bool = True,
    ) -> tuple[Solution | None, bool]:
        """Pack both memories; return the complete plan, and whether every stay of the fast memory
        has an address there.

        Stays without an address move to main memory. The plan is None if jobs cannot use operands
        there, or if main memory has no addresses; the time left does not limit the search for those
        of a plan that is ``needed``.
        """
        workload, target = self.problem.workload, self.problem.target
        fast, out = list[Packed](), list[Residence]()
        if len(target.memories) > 1:
            packed = self._pack(1, Stays.of(workload, placement, timeline, 1), self.seconds())
            out = [r for r, at in zip(packed.residences, packed.offsets, strict=True) if at < 0]
            if out and not target.main.in_place:
                return None, False
            if out:
                placement, timeline = evict(
                    out, placement, timeline, workload.tensors, self.problem.table
                )
                kept = np.array([at for at in packed.offsets if at >= 0], dtype=np.int64)
                packed = Stays.of(workload, placement, timeline, 1).packed(kept)
            fast = [packed]
        main = self._pack_main(Stays.of(workload, placement, timeline, 0), needed)
        if main is None:
            return None, not out
        # Addresses were chosen for one timeline; the dependencies they imply give the final one.
        after = waits(workload.jobs, schedule, placement, (main, *fast))
        chosen = (schedule, placement, timeline, (main, *fast), after)
        return self._timed(*chosen, enough=score), not out

    def _pack(
        self, memory_index: int, stays: Stays, seconds: float, enough: int | None = None
    ) -> Packed:
        """Find addresses for the stays of one memory, or look them up if the same stays were packed
        before."""
        memory = self.problem.target.memories[memory_index]
        offsets = self.packings.get_or_pack(
            *(stays.start, stays.end, stays.sizes),
            capacity=memory.capacity,
            alignment=memory.alignment,
            effort=self.effort,
            seconds=seconds,
            enough=enough,
        )
        return stays.packed(offsets)

    def _pack_main(self, stays: Stays, needed: bool) -> Packed | None:
        """Pack main memory: with the effort that the time left allows, then with full effort if
        addresses are ``needed``."""
        # A peak within half a per cent of the load is good enough in main memory.
        load = most_alive(stays.start, stays.end, stays.sizes)
        for seconds in dict.fromkeys((self.seconds(), math.inf) if needed else (self.seconds(),)):
            packed = self._pack(0, stays, seconds, load + load // 200)
            if min(packed.offsets, default=0) >= 0:
                return packed
        return None

    def timed(self, solution: Solution) -> Solution:
        """Time a plan of a smaller machine on this one: with every task as early as possible or, if
        that is slower, no earlier than in the plan."""
        nothing = Packed((), [], [], [], [], 0)
        lacking = len(self.problem.target.memories) - len(solution.packed)
        packed = (*solution.packed, *[nothing] * lacking)
        chosen = (solution.schedule, solution.placement, solution.timeline, packed)
        return self._timed(*chosen, solution.after)

    def _timed(
        self,
        schedule: Schedule,
        placement: Placement,
        found: Timeline,
        packed: Sequence[Packed],
        after: After,
        enough: Score | None = None,
    ) -> Solution:
        """Time decisions with every task as early as possible; unless the score is at most
        ``enough``, also with no task earlier than in ``found``. Return the better."""

        def timed(after: After) -> Solution:
            """Return the solution with the times of a replay under given waits."""
            timeline = self.problem.replay(schedule, placement, after)
            parts = tuple(retimed(part, timeline) for part in packed)
            return Solution(schedule, placement, timeline, parts, after)

        early = timed(after)
        if enough is not None and self.problem.score_of(early) <= enough:
            return early
        return min(early, timed(as_timed(after, found)), key=self.problem.score_of)
