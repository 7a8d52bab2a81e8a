"""Spills buffers from overfull memories: a greedy choice by the cost saved per byte and instant,
then filling of gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from loadmaster.allocation.memories.problem import FORBIDDEN, Bank, in_bank
from loadmaster.allocation.memories.relaxation import Relaxation
from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.problem import FREE, NO_IN_PLACE, Problem
from loadmaster.core.arrays import Floats, Ints, Mask

_CLOSE = 5_000
"""Most buffers for which packings are searched, instead of only filling gaps."""

Pack = Callable[[int, Ints], Ints | None]
"""A function that packs some buffers in a memory within its capacity, or returns None."""


def spill(
    problem: Problem, banks: tuple[Bank, ...], relaxation: Relaxation, start: Ints, pack: Pack
) -> tuple[Ints, Ints] | None:
    """Turn an assignment that may be overfull into memory and offset of every buffer; None if some
    buffer finds no place.

    A buffer that does not fit moves to its next cheapest memory; buffers with no memory left are
    placed first.
    """
    choices = _choices(relaxation.cost)
    left = [
        list(dict.fromkeys([int(first), *mine])) for first, mine in zip(start, choices, strict=True)
    ]
    offsets = np.full(len(problem), FREE, dtype=np.int64)
    chosen = np.array([mine[0] for mine in left], dtype=np.int64)
    dirty = set(range(len(banks)))
    while dirty:
        bank = min(dirty)
        dirty.discard(bank)
        members = np.flatnonzero(chosen == bank)
        if banks[bank].capacity is None:
            continue
        found = _keep(
            problem,
            banks[bank],
            bank,
            relaxation,
            members,
            _gain(problem, relaxation, left, members),
            pack,
        )
        offsets[members] = found
        for buffer in members[found == FREE].tolist():
            left[buffer].pop(0)
            if not left[buffer]:
                return None
            chosen[buffer] = left[buffer][0]
            dirty.add(int(chosen[buffer]))
    for bank in (at for at, bank in enumerate(banks) if bank.capacity is None):
        members = np.flatnonzero(chosen == bank)
        placed = pack(bank, members)
        if placed is None:
            return None
        offsets[members] = placed
    return chosen, offsets


def _choices(cost: Ints) -> list[list[int]]:
    """Memories of each buffer, the cheapest first."""
    order = np.argsort(
        np.where(cost == FORBIDDEN, np.iinfo(np.int64).max, cost), axis=1, kind="stable"
    )
    count = (cost != FORBIDDEN).sum(axis=1)
    return [row[:many] for row, many in zip(order.tolist(), count.tolist(), strict=True)]


def _gain(problem: Problem, relaxation: Relaxation, left: list[list[int]], members: Ints) -> Floats:
    """Cost saved by keeping each buffer in its memory, per byte and relevant instant; infinite for
    buffers with no other memory."""
    area = _area(relaxation, len(problem))
    saved = [
        float(relaxation.cost[buffer, left[buffer][1]] - relaxation.cost[buffer, left[buffer][0]])
        if len(left[buffer]) > 1
        else np.inf
        for buffer in members.tolist()
    ]
    pinned = problem.pin[members] >= 0
    return np.where(pinned, np.inf, np.array(saved) / area[members])


def _area(relaxation: Relaxation, count: int) -> Floats:
    """Bytes x relevant instants of each buffer."""
    area = np.zeros(count)
    np.add.at(
        area,
        relaxation.owner,
        (relaxation.bytes.max(axis=1) * (relaxation.last - relaxation.first)).astype(np.float64),
    )
    return np.maximum(area, 1.0)


def _keep(
    problem: Problem,
    bank: Bank,
    at: int,
    relaxation: Relaxation,
    members: Ints,
    gain: Floats,
    pack: Pack,
) -> Ints:
    """Offsets of the buffers that stay; `FREE` for the others."""
    part = in_bank(problem, members, bank)
    pinned = part.pin >= 0
    order = np.lexsort((members, -gain, ~pinned))
    saved = np.where(np.isfinite(gain), gain, 0.0) * _area(relaxation, len(problem))[members]
    nothing = np.where(pinned, part.pin, FREE)
    stay = _by_load(relaxation, at, members, order) | pinned
    family = packing_problem(part).orders()
    candidates = []
    if len(members) <= _CLOSE:
        packed = nothing.copy()
        _pack_most(at, members, packed, order[stay[order]], int(pinned.sum()), pack)
        candidates = [packed]
    else:
        family = family[:3]
    candidates += [_fill(part, nothing, first[stay[first]], bank.capacity or 0) for first in family]
    filled = [_fill(part, offsets, order, bank.capacity or 0) for offsets in candidates]
    return max(
        filled,
        key=lambda offsets: (
            int((offsets[~np.isfinite(gain)] != FREE).sum()),
            float(saved[offsets != FREE].sum()),
        ),
    )


def _pack_most(at: int, members: Ints, offsets: Ints, order: Ints, pinned: int, pack: Pack) -> None:
    """Pack as many buffers of ``order`` as possible, by bisection; the first ``pinned`` always
    stay."""
    some, too_many = pinned, len(order) + 1
    count = len(order)
    while some < count < too_many:
        mine = np.sort(order[:count])
        packed = pack(at, members[mine])
        if packed is None:
            too_many = count
        else:
            some = count
            offsets[:] = FREE
            offsets[mine] = packed
        count = (some + too_many) // 2


def _by_load(relaxation: Relaxation, bank: int, members: Ints, order: Ints) -> Mask:
    """Mask of the buffers whose bytes fit at every instant, taken in order."""
    place_of = np.full(len(relaxation.cost), -1, dtype=np.int64)
    place_of[members] = np.arange(len(members))
    parts: list[list[int]] = [[] for _ in members]
    for part, owner in enumerate(place_of[relaxation.owner].tolist()):
        if owner >= 0:
            parts[owner].append(part)
    load = np.zeros(relaxation.instants, dtype=np.int64)
    room = relaxation.room[bank] or 0
    stay = np.zeros(len(members), dtype=bool)
    for member in order.tolist():
        spans = [
            (slice(relaxation.first[p], relaxation.last[p]), relaxation.bytes[p, bank])
            for p in parts[member]
        ]
        if all(load[span].max(initial=0) + more <= room for span, more in spans):
            stay[member] = True
            for span, more in spans:
                load[span] += more
    return stay


def _fill(part: Problem, offsets: Ints, order: Ints, capacity: int) -> Ints:
    """Place buffers of ``order`` without an offset in gaps below the capacity, without moving
    others; in-place pairs overlap where possible."""
    pinned = replace(part, pin=offsets, in_place=NO_IN_PLACE)
    return packing_problem(pinned).place_what_fits(order, capacity)
