"""Addresses for all that a plan holds in its memories, and the times that come of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.core.effort import Effort
from loadmaster.planning.assessor import Assessor
from loadmaster.planning.decisions import (
    Packed,
    Packing,
    Placement,
    Schedule,
    Score,
    Solution,
    Timeline,
)
from loadmaster.planning.dependencies import as_timed, waits
from loadmaster.planning.packing import Packings, most_alive, pack, pack_all
from loadmaster.planning.stays import Stays, retimed


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
    packings: Packings
    effort: Effort = Effort.NORMAL

    def pack(
        self,
        memory_index: int,
        placement: Placement,
        timeline: Timeline,
        value: Floats | None,
        seconds: float | None = None,
    ) -> Packed:
        """Addresses in a memory; where jobs can read the main one in place, what finds none, of
        least ``value``, has offset -1."""
        target = self.assess.target
        memory = target.memories[memory_index]
        stays = Stays.of(self.assess.workload, placement, timeline, memory_index)
        room: dict[str, Any] = {
            "capacity": memory.capacity,
            "alignment": memory.alignment,
            "effort": self.effort,
        }
        seconds = self.seconds() if seconds is None else seconds
        if target.main.in_place:
            return stays.packed(
                self.packings.once(
                    pack, stays.start, stays.end, stays.sizes, **room, value=value, seconds=seconds
                )
            )
        # All operands have to be there: what leaves any out is no packing.
        packing = self.packings.once(
            pack_all, stays.start, stays.end, stays.sizes, **room, seconds=seconds
        )
        return stays.packed(packing or Packing(np.full(len(stays.sizes), -1, dtype=np.int64), 0, 0))

    def complete(self, draft: Draft, *, needed: bool = True) -> Solution | None:
        """Give everything in main memory its address too; None if it finds none, in the time that
        is left unless a plan is ``needed``."""
        main = self._pack_main(draft, needed)
        if main is None:
            return None
        packed: tuple[Packed, ...] = (main,)
        if self.assess.target.fast is not None:
            packed = (main, draft.packed or self.pack(1, draft.placement, draft.timeline, None))
        after = waits(self.assess.workload.jobs, draft.schedule, draft.placement, packed)
        # Addresses were chosen for one timeline; what then waits for what makes the final one.
        timeline = self.assess.replay(draft.schedule, draft.placement, after)
        score = self.assess.score(draft.schedule, draft.placement, timeline)
        if score > draft.score:
            held = as_timed(after, draft.timeline)
            as_found = self.assess.replay(draft.schedule, draft.placement, held)
            if self.assess.score(draft.schedule, draft.placement, as_found) < score:
                after, timeline = held, as_found
        packed = tuple(retimed(part, timeline) for part in packed)
        return Solution(draft.schedule, draft.placement, timeline, packed, after)

    def _pack_main(self, draft: Draft, needed: bool) -> Packed | None:
        """Addresses in main memory; if they are needed and little effort finds none, with all
        effort."""
        main = self.assess.target.main
        stays = Stays.of(self.assess.workload, draft.placement, draft.timeline, 0)
        # How much of main memory a plan takes is of interest, but not every byte of it.
        load = most_alive(stays.start, stays.end, stays.sizes)
        for seconds in dict.fromkeys((self.seconds(), math.inf) if needed else (self.seconds(),)):
            room: dict[str, Any] = {
                "effort": self.effort,
                "capacity": main.capacity,
                "alignment": main.alignment,
                "enough": load + load // 200,
            }
            result = self.packings.once(
                pack_all, stays.start, stays.end, stays.sizes, **room, seconds=seconds
            )
            if result is not None:
                return stays.packed(result)
        return None

    def timed(self, solution: Solution) -> Solution:
        """What was decided for a smaller machine, timed on this one: as early as the order allows,
        or if that is slower, in its rhythm."""
        schedule, placement, after = solution.schedule, solution.placement, solution.after
        timeline = self.assess.replay(schedule, placement, after)
        held = as_timed(after, solution.timeline)
        as_found = self.assess.replay(schedule, placement, held)
        if self.assess.score(schedule, placement, as_found) < self.assess.score(
            schedule, placement, timeline
        ):
            after, timeline = held, as_found
        packed = [retimed(part, timeline) for part in solution.packed]
        nothing = Packed((), [], [], [], [], 0)
        packed += [nothing] * (len(self.assess.target.memories) - len(packed))
        return Solution(schedule, placement, timeline, tuple(packed), after)
