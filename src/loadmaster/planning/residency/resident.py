"""Keep activations in the fast memory from producer to last reader, where cores can use main memory
in place for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.cost.job_times import JobTable, link_seconds
from loadmaster.planning.decisions import Placement, Residence, Schedule, Timeline
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import TensorInstance, Workload


class Occupancy:
    """Bytes in use in each of ``steps`` consecutive slots; O(slots touched) per call."""

    def __init__(self, steps: int, capacity: int) -> None:
        self._used = np.zeros(steps, dtype=np.int64)
        self._capacity = capacity

    def fits(self, first: int, last: int, size: int) -> bool:
        """Whether ``size`` more bytes fit in slots [first, last)."""
        return size + int(self._used[first:last].max(initial=0)) <= self._capacity

    def add(self, first: int, last: int, size: int) -> None:
        """Take ``size`` bytes in slots [first, last)."""
        self._used[first:last] += size

    def earliest(self, last: int, size: int) -> int:
        """The first slot from which ``size`` more bytes fit in every slot before ``last``; ``last``
        itself if there is none."""
        full = np.flatnonzero(self._used[:last] > self._capacity - size)
        return int(full[-1]) + 1 if full.size else 0

    @property
    def used(self) -> Ints:
        """Bytes in use, by slot."""
        return self._used


def keep_resident(
    workload: Workload, table: JobTable, target: Target, schedule: Schedule, timeline: Timeline
) -> Mask:
    """Choose the tensors that stay in the fast memory, greedily by link time saved per byte and
    second of occupancy.

    A tensor occupies it from the start of its producer to the end of its last reader in
    ``timeline``; one with no reader gains nothing. Refills count: what a core fetches several times
    saves several times. O(tensors x (log tensors + slots)).
    """
    assert target.fast is not None
    tensors, users = workload.tensors, workload.readers
    saved = saved_seconds(tensors, table, target, schedule)
    starts, ends = timeline.start.tolist(), timeline.end.tolist()
    candidates = [
        t for t, tensor in enumerate(tensors) if tensor.producer >= 0 and users[t] and saved[t] > 0
    ]
    begin = {t: starts[tensors[t].producer] for t in candidates}
    finish = {t: max(ends[reader] for reader in users[t]) for t in candidates}
    instants = np.unique(np.array([*begin.values(), *finish.values()], dtype=np.int64))
    occupancy = Occupancy(len(instants), target.fast.capacity)
    room = {t: target.fast.padded(tensors[t].bytes) for t in candidates}
    chosen = np.zeros(len(tensors), dtype=np.bool_)
    for t in sorted(
        candidates, key=lambda t: (-saved[t] / (tensors[t].bytes * max(1, finish[t] - begin[t])), t)
    ):
        first, last = (int(i) for i in np.searchsorted(instants, (begin[t], finish[t])))
        if occupancy.fits(first, max(last, first + 1), room[t]):
            occupancy.add(first, max(last, first + 1), room[t])
            chosen[t] = True
    return chosen


def saved_seconds(
    tensors: Sequence[TensorInstance], table: JobTable, target: Target, schedule: Schedule
) -> Floats:
    """Seconds of the main link that each tensor would save in the fast memory; an output must be
    written to main memory all the same."""
    t = table.operand_tensor
    each = link_seconds(table, target.main)[np.arange(len(t)), schedule.core[table.operand_job]]
    output = np.array([tensor.is_output for tensor in tensors])
    seconds = np.where(table.operand_write & output[t], 0.0, each)
    return np.bincount(t, weights=seconds, minlength=len(tensors)).astype(np.float64)


def resident(workload: Workload, table: JobTable, in_fast: Mask) -> Placement:
    """The placement that keeps ``in_fast`` activations in the fast memory and everything else in
    main memory."""
    tensors = workload.tensors
    output = np.array([tensor.is_output for tensor in tensors], dtype=np.bool_)
    in_main = ~in_fast | output
    residences = []
    for t, users in enumerate(workload.readers):
        writer = tensors[t].producer
        if in_fast[t]:
            residences.append(Residence(t, 1, writer, users))
        if in_main[t]:
            # Weights serve every later run too: they keep their place.
            stays = tensors[t].is_output or tensors[t].kind == "weight"
            residences.append(Residence(t, 0, writer, () if in_fast[t] else users, stays))
    rows, write = table.operand_tensor, table.operand_write
    used = np.stack([np.where(write, in_main[rows], ~in_fast[rows]), in_fast[rows]])
    return Placement(used, (), tuple(residences))
