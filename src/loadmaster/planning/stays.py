"""What is to be packed into one memory: stays with their times, which follow from the timeline of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.planning.decisions import Packed, Packing, Placement, Residence, Timeline
from loadmaster.planning.packing import most_alive
from loadmaster.workloads.job import Workload


@dataclass(frozen=True)
class Stays:
    """What is to be packed in one memory: picoseconds and bytes, shape (residences,)."""

    residences: tuple[Residence, ...]
    start: Ints
    end: Ints
    sizes: Ints

    @staticmethod
    def of(workload: Workload, placement: Placement, timeline: Timeline, memory_index: int) -> Stays:
        """Those of a placement in one memory, with the times that a timeline gives them."""
        residences = tuple(r for r in placement.residences if r.memory == memory_index)
        columns = (
            [_start_of(r, timeline) for r in residences],
            [_end_of(r, timeline) for r in residences],
            [workload.tensors[r.tensor].bytes for r in residences],
        )
        return Stays(residences, *(np.array(column, dtype=np.int64) for column in columns))

    def packed(self, result: Packing) -> Packed:
        """The stays with the addresses that they were given."""
        return Packed(self.residences, self.start.tolist(), self.end.tolist(), result.offsets.tolist(), self.sizes.tolist(), result.load)


def retimed(packed: Packed, timeline: Timeline) -> Packed:
    """The same addresses over the lifetimes of another timeline."""
    start = [_start_of(residence, timeline) for residence in packed.residences]
    end = [_end_of(residence, timeline) for residence in packed.residences]
    return replace(
        packed, start=start, end=end, load=most_alive(*(np.array(column, dtype=np.int64) for column in (start, end, packed.sizes)))
    )


def _start_of(residence: Residence, timeline: Timeline) -> int:
    """Picosecond at which a stay begins."""
    return int(timeline.start[residence.writer]) if residence.writer >= 0 else 0


def _end_of(residence: Residence, timeline: Timeline) -> int:
    """Picosecond at which a stay ends; a tensor that nobody reads is there while it is written."""
    if residence.to_the_end:
        return timeline.makespan
    tasks = [task for task in (residence.writer, *residence.users) if task >= 0]
    return max((int(timeline.end[task]) for task in tasks), default=0)
