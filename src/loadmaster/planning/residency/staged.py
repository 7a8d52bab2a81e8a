"""Copies for a machine whose cores cannot use main memory: every operand is brought to the fast
memory first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadmaster.core.arrays import Mask
from loadmaster.core.errors import CapacityError
from loadmaster.core.units import format_bytes
from loadmaster.cost.job_times import JobTable
from loadmaster.planning.decisions import Copy, Placement, Residence
from loadmaster.planning.residency.resident import Occupancy
from loadmaster.targets.hardware import Memory
from loadmaster.workloads.job import Job, TensorInstance, Workload


@dataclass
class _Stay:
    """A tensor in fast memory for a run of uses: over positions [first, last] of the order, from
    its producer or from a copy.

    ``written_back`` is the first position at which main memory may hold the tensor; a copy starts
    at position ``copied_from``. ``copy`` is the task that brings it, or that takes it back if the
    stay began with the producer; -1 for none.
    """

    tensor: int
    uses: list[int]
    produced: bool
    written_back: int = 0
    copied_from: int = 0
    copy: int = -1

    @property
    def first(self) -> int:
        """Position of the first use."""
        return self.uses[0]


def stage_copies(
    workload: Workload,
    table: JobTable,
    order: Sequence[int],
    fast: Memory,
    *,
    margin: float = 1.0,
    wait_for_copies_back: bool = False,
) -> Placement:
    """Decide what stays in fast memory between uses, what goes back to main memory, and how early
    each copy may start.

    All jobs run on one core in ``order``. Every operand is in fast memory while its job runs.
    Between two uses a tensor stays if it fits, the most bytes per position of waiting last; else it
    is written back (once: tensors are written once) and read again. A copy to fast memory starts as
    early as space allows. ``margin`` scales the capacity that is filled, for when a packing at full
    capacity failed. O(uses x positions) in vectorised steps.

    Raises
    ------
    CapacityError
        If one job's operands exceed the fast memory: with the bytes required, available and in
        excess.
    """
    jobs, tensors = workload.jobs, workload.tensors
    position = {job: at for at, job in enumerate(order)}
    uses = [sorted(position[j] for j in users) for users in workload.readers]
    occupancy = Occupancy(len(order), int(fast.capacity * margin))
    _require_operands(jobs, tensors, position, uses, occupancy, fast)
    stays = _keep_between_uses(tensors, position, uses, occupancy, fast)
    for stay in sorted((s for s in stays if not s.produced), key=lambda s: (s.first, s.tensor)):
        size = fast.padded(tensors[stay.tensor].bytes)
        stay.copied_from = max(stay.written_back, occupancy.earliest(stay.first, size))
        occupancy.add(stay.copied_from, stay.first, size)
    used = np.zeros((2, len(table.operand_job)), dtype=np.bool_)
    used[1] = True
    return _Writer(tensors, order, stays, len(jobs)).placement(used, wait_for_copies_back)


def _require_operands(
    jobs: Sequence[Job],
    tensors: Sequence[TensorInstance],
    position: dict[int, int],
    uses: list[list[int]],
    occupancy: Occupancy,
    fast: Memory,
) -> None:
    """Take the space of every job's operands at its position."""
    for t, positions in enumerate(uses):
        for at in positions:
            occupancy.add(at, at + 1, fast.padded(tensors[t].bytes))
    for tensor in tensors:
        if tensor.producer >= 0:
            occupancy.add(
                position[tensor.producer], position[tensor.producer] + 1, fast.padded(tensor.bytes)
            )
    worst = int(np.argmax(occupancy.used))
    required = int(occupancy.used[worst])
    if required > fast.capacity:
        job = next(jobs[index] for index, at in position.items() if at == worst)
        raise CapacityError(
            f"job {job.name} needs all its operands in {fast.name}: {format_bytes(required)}"
            f" required, {format_bytes(fast.capacity)} available,"
            f" {format_bytes(required - fast.capacity)} in excess: use a smaller batch, a lower"
            f" precision, or a larger {fast.name}.capacity"
        )


def _keep_between_uses(
    tensors: Sequence[TensorInstance],
    position: dict[int, int],
    uses: list[list[int]],
    occupancy: Occupancy,
    fast: Memory,
) -> list[_Stay]:
    gaps = []
    events = []
    for t, tensor in enumerate(tensors):
        own = ([position[tensor.producer]] if tensor.producer >= 0 else []) + uses[t]
        events.append(own)
        gaps += [(later - earlier, t, i) for i, (earlier, later) in enumerate(pairwise(own))]
    kept: set[tuple[int, int]] = set()
    for _, t, i in sorted(gaps):
        first, last, size = events[t][i] + 1, events[t][i + 1], fast.padded(tensors[t].bytes)
        if first >= last or occupancy.fits(first, last, size):
            occupancy.add(first, last, size)
            kept.add((t, i))
    stays: list[_Stay] = []
    for t, own in enumerate(events):
        for i, at in enumerate(own):
            if i and (t, i - 1) in kept:
                stays[-1].uses.append(at)
            else:
                stays.append(
                    _Stay(
                        t,
                        [at],
                        i == 0 and tensors[t].producer >= 0,
                        written_back=own[i - 1] + 1 if i else 0,
                    )
                )
    return stays


class _Writer:
    """Numbers the copies, in the order in which the copy engine makes them, and says what waits for
    what."""

    def __init__(
        self, tensors: Sequence[TensorInstance], order: Sequence[int], stays: list[_Stay], jobs: int
    ) -> None:
        self._tensors, self._order = tensors, order
        self._of_tensor: dict[int, list[_Stay]] = {}
        for stay in stays:
            self._of_tensor.setdefault(stay.tensor, []).append(stay)
        # A copy back is due when its producer has run; a copy in, when its space is free.
        back = [
            (own[0].first + 1, 0, own[0])
            for own in self._of_tensor.values()
            if self._goes_back(own)
        ]
        inward = [(stay.copied_from, 1, stay) for stay in stays if not stay.produced]
        self._plan = sorted(
            back + inward, key=lambda item: (item[0], item[1], item[2].first, item[2].tensor)
        )
        for number, (_, _, stay) in enumerate(self._plan):
            stay.copy = jobs + number

    def _goes_back(self, own: list[_Stay]) -> bool:
        return own[0].produced and (len(own) > 1 or self._tensors[own[0].tensor].is_output)

    def placement(self, used: Mask, wait_for_copies_back: bool) -> Placement:
        copies = []
        for due, into, stay in self._plan:
            after = [self._order[due - 1]] if due else []
            first = self._of_tensor[stay.tensor][0]
            if into and first.produced:
                after.append(first.copy)
            before = (
                [self._order[stay.first]]
                if into
                else list(self._order[due : due + 1]) * wait_for_copies_back
            )
            copies.append(
                Copy(stay.tensor, 1 - into, into, tuple(dict.fromkeys(after)), tuple(before))
            )
        return Placement(used, tuple(copies), tuple(self._residences()))

    def _residences(self) -> Iterator[Residence]:
        for t, own in sorted(self._of_tensor.items()):
            tensor, inward = self._tensors[t], tuple(stay.copy for stay in own if not stay.produced)
            for stay in own:
                jobs = tuple(self._order[at] for at in stay.uses)
                if stay.produced:
                    back = (stay.copy,) if self._goes_back(own) else ()
                    yield Residence(t, 1, jobs[0], jobs[1:] + back)
                else:
                    yield Residence(t, 1, stay.copy, jobs)
            if tensor.producer < 0:
                yield Residence(t, 0, -1, inward, tensor.kind == "weight" or tensor.is_output)
            elif self._goes_back(own):
                yield Residence(t, 0, own[0].copy, inward, tensor.is_output)
