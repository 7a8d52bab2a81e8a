"""Copies for a machine whose cores cannot use main memory: every operand is brought to the fast memory first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadmaster.decisions import Copy, Placement, Residence
from loadmaster.errors import CapacityError
from loadmaster.hardware import Memory
from loadmaster.job import Job, TensorInstance
from loadmaster.placement.occupancy import Occupancy
from loadmaster.placement.uses import readers
from loadmaster.units import format_bytes


@dataclass
class _Stay:
    """A tensor in fast memory for a run of uses: over positions [first, last] of the order, from its producer or from a copy.

    ``written_back`` is the first position at which main memory may hold the tensor; a copy starts at position ``copied_from``.
    """

    tensor: int
    uses: list[int]
    produced: bool
    written_back: int = 0
    copied_from: int = 0

    @property
    def first(self) -> int:
        """Position of the first use."""
        return self.uses[0]


def stage_copies(
    jobs: Sequence[Job], tensors: Sequence[TensorInstance], order: Sequence[int], fast: Memory, *, margin: float = 1.0
) -> Placement:
    """Decide what stays in fast memory between uses, what goes back to main memory, and how early each copy may start.

    All jobs run on one core in ``order``. Every operand is in fast memory while its job runs. Between two uses a tensor
    stays if it fits, the most bytes per position of waiting last; else it is written back (once: tensors are written
    once) and read again. A copy to fast memory starts as early as space allows. ``margin`` scales the capacity that is
    filled, for when a packing at full capacity failed. O(uses x positions) in vectorised steps.

    Raises
    ------
    CapacityError
        If one job's operands exceed the fast memory: with the bytes required, available and in excess.
    """
    position = {job: at for at, job in enumerate(order)}
    uses = [sorted(position[j] for j in users) for users in readers(jobs, tensors)]
    occupancy = Occupancy(len(order), int(fast.capacity * margin))
    _require_operands(jobs, tensors, order, uses, occupancy, fast)
    stays = _keep_between_uses(tensors, position, uses, occupancy, fast.alignment)
    for stay in sorted((s for s in stays if not s.produced), key=lambda s: (s.first, s.tensor)):
        size = _rounded(tensors[stay.tensor].bytes, fast.alignment)
        stay.copied_from = max(stay.written_back, occupancy.earliest(stay.first, size))
        occupancy.add(stay.copied_from, stay.first, size)
    return _placement(tensors, order, stays, len(jobs))


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _require_operands(
    jobs: Sequence[Job], tensors: Sequence[TensorInstance], order: Sequence[int], uses: list[list[int]], occupancy: Occupancy, fast: Memory
) -> None:
    """Take the space of every job's operands at its position."""
    for t, positions in enumerate(uses):
        for at in positions:
            occupancy.add(at, at + 1, _rounded(tensors[t].bytes, fast.alignment))
    place = {job: at for at, job in enumerate(order)}
    for tensor in tensors:
        if tensor.producer >= 0:
            occupancy.add(place[tensor.producer], place[tensor.producer] + 1, _rounded(tensor.bytes, fast.alignment))
    worst = int(np.argmax(occupancy.used))
    required = int(occupancy.used[worst])
    if required > fast.capacity:
        raise CapacityError(
            f"job {jobs[order[worst]].name} needs all its operands in {fast.name}: {format_bytes(required)} required, "
            f"{format_bytes(fast.capacity)} available, {format_bytes(required - fast.capacity)} in excess: "
            f"use a smaller batch, a lower precision, or a larger {fast.name}.capacity"
        )


def _keep_between_uses(
    tensors: Sequence[TensorInstance], position: dict[int, int], uses: list[list[int]], occupancy: Occupancy, alignment: int
) -> list[_Stay]:
    gaps = []
    events = []
    for t, tensor in enumerate(tensors):
        own = ([position[tensor.producer]] if tensor.producer >= 0 else []) + uses[t]
        events.append(own)
        gaps += [(later - earlier, t, i) for i, (earlier, later) in enumerate(pairwise(own))]
    kept: set[tuple[int, int]] = set()
    for _, t, i in sorted(gaps):
        first, last, size = events[t][i] + 1, events[t][i + 1], _rounded(tensors[t].bytes, alignment)
        if first >= last or occupancy.fits(first, last, size):
            occupancy.add(first, last, size)
            kept.add((t, i))
    stays: list[_Stay] = []
    for t, own in enumerate(events):
        for i, at in enumerate(own):
            if i and (t, i - 1) in kept:
                stays[-1].uses.append(at)
            else:
                stays.append(_Stay(t, [at], i == 0 and tensors[t].producer >= 0, written_back=own[i - 1] + 1 if i else 0))
    return stays


def _placement(tensors: Sequence[TensorInstance], order: Sequence[int], stays: list[_Stay], jobs: int) -> Placement:
    """Number the copies, in the order in which the copy engine makes them, and say what waits for what."""
    by_tensor: dict[int, list[_Stay]] = {}
    for stay in stays:
        by_tensor.setdefault(stay.tensor, []).append(stay)
    outward = {t: own[0] for t, own in by_tensor.items() if own[0].produced and (len(own) > 1 or tensors[t].is_output)}
    inward = [stay for stay in stays if not stay.produced]
    # A copy out is due when its producer has run; a copy in, when its space is free.
    plan = [(order[stay.first], stay.first + 1, 0, t, stay) for t, stay in outward.items()]
    plan += [(-1, stay.copied_from, 1, stay.tensor, stay) for stay in inward]
    plan.sort(key=lambda item: (item[1], item[2], item[4].first, item[3]))
    number = {(item[2], id(item[4])): jobs + i for i, item in enumerate(plan)}
    copies = []
    for _, due, into, t, stay in plan:
        after = [order[due - 1]] if due else []
        if into and t in outward:
            after.append(number[0, id(outward[t])])
        before = tuple(order[at] for at in stay.uses[:1]) if into else ()
        copies.append(Copy(t, bool(into), tuple(dict.fromkeys(after)), before))
    return _with_residences(tensors, order, by_tensor, outward, number, copies)


def _with_residences(
    tensors: Sequence[TensorInstance],
    order: Sequence[int],
    by_tensor: dict[int, list[_Stay]],
    outward: dict[int, _Stay],
    number: dict[tuple[int, int], int],
    copies: list[Copy],
) -> Placement:
    residences = []
    for t, own in sorted(by_tensor.items()):
        copied_out = number[0, id(outward[t])] if t in outward else None
        for stay in own:
            writer = tensors[t].producer if stay.produced else number[1, id(stay)]
            users = [order[at] for at in stay.uses[1 if stay.produced else 0 :]]
            if stay.produced and copied_out is not None:
                users.append(copied_out)
            residences.append(Residence(t, 1, writer, tuple(users)))
        inward = tuple(number[1, id(stay)] for stay in own if not stay.produced)
        if tensors[t].producer < 0:
            residences.append(Residence(t, 0, -1, inward, tensors[t].kind == "weight" or tensors[t].is_output))
        elif copied_out is not None:
            residences.append(Residence(t, 0, copied_out, inward, tensors[t].is_output))
    everywhere = np.ones(len(tensors), dtype=np.bool_)
    return Placement(everywhere, everywhere, ~everywhere, tuple(copies), tuple(residences))
