"""What is to be packed into one memory: stays with their times, which follow from the timeline of a
plan."""

from __future__ import annotations

from collections.abc import Sequence
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
    def of(
        workload: Workload, placement: Placement, timeline: Timeline, memory_index: int
    ) -> Stays:
        """Those of a placement in one memory, with the times that a timeline gives them."""
        residences = tuple(r for r in placement.residences if r.memory == memory_index)
        columns = (
            *_lifetimes(residences, timeline),
            [workload.tensors[r.tensor].bytes for r in residences],
        )
        return Stays(residences, *(np.array(column, dtype=np.int64) for column in columns))

    def packed(self, result: Packing) -> Packed:
        """The stays with the addresses that they were given."""
        return Packed(
            self.residences,
            self.start.tolist(),
            self.end.tolist(),
            result.offsets.tolist(),
            self.sizes.tolist(),
            result.load,
        )


def retimed(packed: Packed, timeline: Timeline) -> Packed:
    """The same addresses over the lifetimes of another timeline."""
    start, end = _lifetimes(packed.residences, timeline)
    return replace(
        packed,
        start=start,
        end=end,
        load=most_alive(
            *(np.array(column, dtype=np.int64) for column in (start, end, packed.sizes))
        ),
    )


def _lifetimes(residences: Sequence[Residence], timeline: Timeline) -> tuple[list[int], list[int]]:
    """Picoseconds at which stays begin and end; a tensor that nobody reads is there while it is
    written."""
    starts, ends, makespan = timeline.start.tolist(), timeline.end.tolist(), timeline.makespan
    begin = [starts[residence.writer] if residence.writer >= 0 else 0 for residence in residences]
    over = []
    for residence in residences:
        written = ends[residence.writer] if residence.writer >= 0 else 0
        last = (
            makespan
            if residence.to_the_end
            else max(map(ends.__getitem__, residence.users), default=0)
        )
        over.append(max(written, last))
    return begin, over
