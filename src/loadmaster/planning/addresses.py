"""Addresses for all that a plan holds in its memories, and the times that come of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from loadmaster.core.arrays import Floats
from loadmaster.core.effort import Effort
from loadmaster.planning.assessor import Assessor
from loadmaster.planning.decisions import (
    Packed,
    Placement,
    Schedule,
    Score,
    Solution,
    Timeline,
)
from loadmaster.planning.packing import PackingCache, Stays, most_alive, retimed
from loadmaster.workloads.job import Job


def reuse_pairs(
    start: Sequence[int], offset: Sequence[int], size: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Pairs ``(earlier, later)`` of buffers such that ``later`` takes over bytes whose last owner
    was ``earlier``.

    Buffers take their addresses in order of ``start``. Earlier owners of the same bytes are not
    listed again: they were done before the last owner came. O(n log n) but for shifting the list of
    ranges in use.
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
    """For every task (jobs, then copies) the tasks that must have ended before it starts, beside
    those before it on its core.

    With these the decisions hold whatever the times turn out to be: bytes pass from one stay to the
    next only when all users of the first have ended. O(tasks + n log n) for n stays.
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
            # What the order on its own core puts before a task need not be waited for.
            after[waiting].update(
                [
                    task
                    for task in (before.writer, *before.users)
                    if task >= 0 and core[task] != here
                ]
            )
    return tuple([tuple(sorted(tasks)) for tasks in after])


def as_timed(after: After, timeline: Timeline) -> After:
    """Waits with which no task starts before it does in a timeline that keeps them: each waits for
    one that ends as it starts, too.

    Tasks that start as early as they may can get into each other's way on the links, and all end
    later than in the timeline.
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
class Draft:
    """Decisions with addresses in the fast memory, if they use it; main memory is packed for the
    best one only."""

    schedule: Schedule
    placement: Placement
    timeline: Timeline
    packed: Packed | None
    score: Score


@dataclass(frozen=True)
class Addresses:
    """Packs the memories of one workload's plans; ``seconds`` tells what is left for that before it
    should do with the least effort."""

    assess: Assessor
    seconds: Callable[[], float]
    packings: PackingCache
    effort: Effort = Effort.NORMAL

    def pack(
        self, memory_index: int, placement: Placement, timeline: Timeline, value: Floats
    ) -> Packed:
        """Addresses in a memory; where jobs can read the main one in place, what finds none, of
        least ``value``, has offset -1. Else all operands have to be there, or have none."""
        stays = Stays.of(self.assess.workload, placement, timeline, memory_index)
        whole = not self.assess.target.main.in_place
        return self._packed(memory_index, stays, self.seconds(), whole=whole, value=value)

    def _packed(self, memory_index: int, stays: Stays, seconds: float, **options: Any) -> Packed:
        memory = self.assess.target.memories[memory_index]
        packing = self.packings.get_or_pack(
            *(stays.start, stays.end, stays.sizes),
            capacity=memory.capacity,
            alignment=memory.alignment,
            effort=self.effort,
            seconds=seconds,
            **options,
        )
        return stays.packed(packing)

    def complete(self, draft: Draft, *, needed: bool = True) -> Solution | None:
        """Give everything in main memory its address too; None if it finds none, in the time that
        is left unless a plan is ``needed``."""
        main = self._pack_main(draft, needed)
        if main is None:
            return None
        packed = (main,) if draft.packed is None else (main, draft.packed)
        after = waits(self.assess.workload.jobs, draft.schedule, draft.placement, packed)
        # Addresses were chosen for one timeline; what then waits for what makes the final one.
        chosen = (draft.schedule, draft.placement, draft.timeline, packed)
        return self._timed(*chosen, after, enough=draft.score)

    def _pack_main(self, draft: Draft, needed: bool) -> Packed | None:
        """Addresses in main memory; if they are needed and little effort finds none, with all
        effort."""
        stays = Stays.of(self.assess.workload, draft.placement, draft.timeline, 0)
        # How much of main memory a plan takes is of interest, but not every byte of it.
        load = most_alive(stays.start, stays.end, stays.sizes)
        for seconds in dict.fromkeys((self.seconds(), math.inf) if needed else (self.seconds(),)):
            packed = self._packed(0, stays, seconds, whole=True, enough=load + load // 200)
            if min(packed.offsets, default=0) >= 0:
                return packed
        return None

    def timed(self, solution: Solution) -> Solution:
        """What was decided for a smaller machine, timed on this one: as early as the order allows,
        or if that is slower, in its rhythm."""
        nothing = Packed((), [], [], [], [], 0)
        lacking = len(self.assess.target.memories) - len(solution.packed)
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
        """Decisions timed as early as the order allows; unless that is good enough, in the rhythm
        in which they were found, if it is better."""

        def timed(after: After) -> Solution:
            timeline = self.assess.replay(schedule, placement, after)
            parts = tuple(retimed(part, timeline) for part in packed)
            return Solution(schedule, placement, timeline, parts, after)

        early = timed(after)
        if enough is not None and self.assess.score_of(early) <= enough:
            return early
        return min(early, timed(as_timed(after, found)), key=self.assess.score_of)
