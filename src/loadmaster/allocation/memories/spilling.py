"""Spills buffers from overfull memories: a greedy choice by the cost saved per byte and instant,
then exchanges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadmaster.allocation.memories.problem import FORBIDDEN, Bank, cheapest_first, in_bank
from loadmaster.allocation.memories.relaxation import Relaxation
from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.problem import FREE, Allocation, Problem
from loadmaster.core.arrays import Floats, Ints, Mask

Pack = Callable[[int, Ints, int | None], Allocation]
"""A function that packs some buffers in a memory within a capacity, or without one."""
_MANY = 5_000
"""Buffers above which few orders are tried."""


def spill(
    problem: Problem,
    banks: tuple[Bank, ...],
    relaxation: Relaxation,
    known: tuple[Ints, Ints],
    pack: Pack,
    nodes: int,
) -> tuple[Ints, Ints] | None:
    """Choose memory and offset of every buffer; None if some buffer finds no place.

    Each buffer begins in its cheapest memory. A buffer that does not fit moves to its next cheapest
    one; buffers with no memory left are placed first. ``known`` has the memories and offsets of
    buffers that are packed already, `FREE` for others. ``nodes`` is the budget of exchanges in each
    of a few packings of a memory.
    """
    left = _choices(relaxation.cost)
    offsets = np.full(len(problem), FREE, dtype=np.int64)
    chosen = np.array([mine[0] for mine in left], dtype=np.int64)
    dirty = {*relaxation.room}
    while dirty:
        bank = min(dirty)
        dirty.discard(bank)
        members = np.flatnonzero(chosen == bank)
        part, capacity = in_bank(problem, members, banks[bank]), banks[bank].capacity or 0
        saved = _cost_saved(relaxation.cost, left, members)
        packed = np.where(known[0][members] == bank, known[1][members], part.pin)
        found = _keep(part, capacity, packed, bank, relaxation, members, saved, nodes)
        offsets[members] = found
        for buffer in members[found == FREE].tolist():
            left[buffer].pop(0)
            if not left[buffer]:
                return None
            chosen[buffer] = left[buffer][0]
            dirty |= {left[buffer][0]} & relaxation.room.keys()
    for bank in sorted({*range(len(banks))} - relaxation.room.keys()):
        members = np.flatnonzero(chosen == bank)
        placed = pack(bank, members, None).offsets
        if placed is None:
            return None
        offsets[members] = placed
    return chosen, offsets


def _choices(cost: Ints) -> list[list[int]]:
    """Memories of each buffer, the cheapest first."""
    rows = cheapest_first(cost).tolist(), (cost != FORBIDDEN).sum(axis=1).tolist()
    return [row[:count] for row, count in zip(*rows, strict=True)]


def _cost_saved(cost: Ints, left: list[list[int]], members: Ints) -> Floats:
    """Cost saved by keeping each buffer in its memory; infinite for buffers with no other
    memory."""
    choices = [(buffer, *left[buffer]) for buffer in members.tolist()]
    return np.array(
        [
            cost[buffer, then[0]] - cost[buffer, now] if then else np.inf
            for buffer, now, *then in choices
        ],
        dtype=np.float64,
    )


def _area(relaxation: Relaxation) -> Floats:
    """Bytes x relevant instants of each buffer."""
    areas = relaxation.bytes.max(axis=1) * (relaxation.last - relaxation.first)
    found = np.bincount(relaxation.owner, weights=areas, minlength=len(relaxation.cost))
    return np.maximum(found, 1.0)


def _keep(
    part: Problem,
    capacity: int,
    packed: Ints,
    bank: int,
    relaxation: Relaxation,
    members: Ints,
    saved: Floats,
    nodes: int,
) -> Ints:
    """Offsets of the buffers that stay; `FREE` for the others, as in ``packed``, a packing to begin
    with. Those that save most per byte and relevant instant are placed first."""
    pinned = part.pin >= 0
    must = pinned | np.isinf(saved)
    gain = np.where(must, np.inf, saved / _area(relaxation)[members])
    order = np.lexsort((members, -gain, ~pinned))
    stay = _by_load(relaxation, bank, members, order) | pinned
    worth = np.where(must, 1.0 + saved[~must].sum(), saved)
    native = packing_problem(part)
    orders = [each[stay[each]] for each in native.orders()[: None if len(members) <= _MANY else 3]]
    # In the order of their addresses first fit places all that are packed again, then others.
    orders.append(np.lexsort((-gain, np.where(packed == FREE, capacity, packed))))
    found = [native.place_what_fits(each, capacity, worth, nodes) for each in orders]
    return max([packed, *found], key=lambda offsets: float(worth[offsets != FREE].sum()))


def _by_load(relaxation: Relaxation, bank: int, members: Ints, order: Ints) -> Mask:
    """Mask of the buffers whose bytes fit at every instant, taken in order."""
    # Parts are sorted by owner.
    first, last = np.searchsorted(relaxation.owner, [members, members + 1])
    load = np.zeros(relaxation.instants, dtype=np.int64)
    room = relaxation.room[bank]
    stay = np.zeros(len(members), dtype=bool)
    for member in order.tolist():
        spans = [
            (slice(relaxation.first[p], relaxation.last[p]), relaxation.bytes[p, bank])
            for p in range(first[member], last[member])
        ]
        if all(load[span].max(initial=0) + more <= room for span, more in spans):
            stay[member] = True
            for span, more in spans:
                load[span] += more
    return stay
