"""Gives the residences of a plan addresses, and simulates the plan with the dependencies that
address reuse implies."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

from loadmaster.core.effort import Effort
from loadmaster.planning.decisions import (
    Placement,
    Schedule,
    Score,
    Solution,
    Stays,
    Timeline,
)
from loadmaster.planning.packing import evict, pack, saved_bytes
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
    jobs: Sequence[Job], schedule: Schedule, placement: Placement, packed: Sequence[Stays]
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
        columns = (column.tolist() for column in (part.start, part.offsets, part.sizes))
        for earlier, later in reuse_pairs(*columns):
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
    effort: Effort

    def complete(
        self,
        schedule: Schedule,
        placement: Placement,
        timeline: Timeline,
        score: Score,
        *,
        needed: bool,
    ) -> tuple[Solution | None, bool]:
        """Pack both memories; return the complete plan, and whether every stay of the fast memory
        has an address there.

        Stays without an address, which save few bytes, move to main memory. The plan is None if
        jobs cannot use operands there, or if main memory has no addresses; the time left does not
        limit the search for those of a plan that is ``needed``.
        """
        workload, table = self.problem.workload, self.problem.table
        in_place, whole = self.problem.target.main.in_place, True
        fast = list[Stays]()
        if len(self.problem.target.memories) > 1:
            stays = Stays.of(workload, placement, timeline, 1)
            saved = partial(saved_bytes, stays, placement, schedule.core, table)
            stays = self._pack(1, stays, self.seconds(), worth=saved if in_place else None)
            kept = stays.offsets[stays.offsets >= 0]
            whole = len(kept) == len(stays.offsets)
            if not whole:
                if not in_place:
                    return None, False
                placement, timeline = evict(stays, placement, timeline, workload, table)
                stays = replace(Stays.of(workload, placement, timeline, 1), offsets=kept)
            fast = [stays]
        main = self._pack_main(Stays.of(workload, placement, timeline, 0), needed)
        if main is None:
            return None, whole
        # Addresses were chosen for one timeline; the dependencies they imply give the final one.
        packed = (main, *fast)
        after = waits(workload.jobs, schedule, placement, packed)
        return self._timed(schedule, placement, timeline, packed, after, score), whole

    def _pack(self, memory_index: int, stays: Stays, seconds: float, **options: Any) -> Stays:
        """Find addresses for the stays of one memory."""
        memory = self.problem.target.memories[memory_index]
        return replace(
            stays,
            offsets=pack(
                *(stays.start, stays.end, stays.sizes),
                capacity=memory.capacity,
                alignment=memory.alignment,
                effort=self.effort,
                seconds=seconds,
                **options,
            ),
        )

    def _pack_main(self, stays: Stays, needed: bool) -> Stays | None:
        """Pack main memory: with the effort that the time left allows, then with full effort if
        addresses are ``needed``."""
        # A peak within half a per cent of the load is good enough in main memory.
        enough = stays.load * 201 // 200
        for seconds in dict.fromkeys((self.seconds(), math.inf) if needed else (self.seconds(),)):
            packed = self._pack(0, stays, seconds, enough=enough)
            if packed.offsets.min(initial=0) >= 0:
                return packed
        return None

    def timed(self, solution: Solution) -> Solution:
        """Time a plan of a smaller machine on this one: with every task as early as possible or, if
        that is slower, no earlier than in the plan."""
        chosen = (solution.schedule, solution.placement, solution.timeline)
        # A memory that the smaller machine lacks is not used.
        lacking = range(len(solution.packed), len(self.problem.target.memories))
        unused = (Stays.of(self.problem.workload, *chosen[1:], number) for number in lacking)
        return self._timed(*chosen, (*solution.packed, *unused), solution.after)

    def _timed(
        self,
        schedule: Schedule,
        placement: Placement,
        found: Timeline,
        packed: Sequence[Stays],
        after: After,
        enough: Score | None = None,
    ) -> Solution:
        """Time decisions with every task as early as possible; unless the score is at most
        ``enough``, also with no task earlier than in ``found``. Return the better."""

        def timed(after: After) -> Solution:
            """Return the solution with the times of a replay under given waits."""
            timeline = self.problem.replay(schedule, placement, after)
            parts = tuple(part.timed(timeline) for part in packed)
            return Solution(schedule, placement, timeline, parts, after)

        early = timed(after)
        if enough is not None and self.problem.score_of(early) <= enough:
            return early
        return min(early, timed(as_timed(after, found)), key=self.problem.score_of)
