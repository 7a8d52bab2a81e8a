"""Spills buffers from overfull memories: a greedy choice by the cost saved per byte and instant,
then exchanges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadmaster.allocation.memories.problem import FORBIDDEN, Bank, cheapest_first, in_bank
from loadmaster.allocation.memories.relaxation import Relaxation
from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.problem import FREE, Problem
from loadmaster.core.arrays import Floats, Ints, Mask

_CLOSE = 5_000
"""Most buffers for which packings are searched, beside first fit and exchanges."""

Pack = Callable[[int, Ints], Ints | None]
"""A function that packs some buffers in a memory within its capacity, or returns None."""


def spill(
    problem: Problem,
    banks: tuple[Bank, ...],
    relaxation: Relaxation,
    start: Ints,
    pack: Pack,
    nodes: int,
) -> tuple[Ints, Ints] | None:
    """Turn an assignment that may be overfull into memory and offset of every buffer; None if some
    buffer finds no place.

    A buffer that does not fit moves to its next cheapest memory; buffers with no memory left are
    placed first. ``nodes`` is the budget of exchanges in each of a few packings of a memory.
    """
    left = [
        list(dict.fromkeys([first, *mine]))
        for first, mine in zip(start.tolist(), _choices(relaxation.cost), strict=True)
    ]
    offsets = np.full(len(problem), FREE, dtype=np.int64)
    chosen = np.array([mine[0] for mine in left], dtype=np.int64)
    dirty = {*relaxation.room}
    while dirty:
        bank = min(dirty)
        dirty.discard(bank)
        members = np.flatnonzero(chosen == bank)
        part, capacity = in_bank(problem, members, banks[bank]), banks[bank].capacity or 0
        saved = _cost_saved(relaxation.cost, left, members)
        found = _keep(part, capacity, bank, relaxation, members, saved, pack, nodes)
        offsets[members] = found
        for buffer in members[found == FREE].tolist():
            left[buffer].pop(0)
            if not left[buffer]:
                return None
            chosen[buffer] = left[buffer][0]
            dirty |= {left[buffer][0]} & relaxation.room.keys()
    for bank in sorted({*range(len(banks))} - relaxation.room.keys()):
        members = np.flatnonzero(chosen == bank)
        placed = pack(bank, members)
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
    bank: int,
    relaxation: Relaxation,
    members: Ints,
    saved: Floats,
    pack: Pack,
    nodes: int,
) -> Ints:
    """Offsets of the buffers that stay; `FREE` for the others. Those that save most per byte and
    relevant instant are placed first."""
    pinned = part.pin >= 0
    must = pinned | np.isinf(saved)
    gain = np.where(must, np.inf, saved / _area(relaxation)[members])
    order = np.lexsort((members, -gain, ~pinned))
    stay = _by_load(relaxation, bank, members, order) | pinned
    worth = np.where(must, 1.0 + saved[~must].sum(), saved)
    native = packing_problem(part)
    orders = [each[stay[each]] for each in native.orders()[: None if len(members) <= _CLOSE else 3]]
    packed = np.where(pinned, part.pin, FREE)
    if len(members) <= _CLOSE:
        _pack_most(bank, members, packed, order[stay[order]], int(pinned.sum()), pack)
        # In the order of their addresses first fit places all of them again, then others.
        orders.append(np.lexsort((-gain, np.where(packed == FREE, capacity, packed))))
    found = [native.place_what_fits(each, capacity, worth, nodes) for each in orders]
    return max([packed, *found], key=lambda offsets: float(worth[offsets != FREE].sum()))


def _pack_most(
    bank: int, members: Ints, offsets: Ints, order: Ints, pinned: int, pack: Pack
) -> None:
    """Pack as many buffers of ``order`` as possible, by bisection; the first ``pinned`` always
    stay."""
    some, too_many = pinned, len(order) + 1
    count = len(order)
    while some < count < too_many:
        mine = np.sort(order[:count])
        packed = pack(bank, members[mine])
        if packed is None:
            too_many = count
        else:
            some = count
            offsets[:] = FREE
            offsets[mine] = packed
        count = (some + too_many) // 2


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
