"""Packing the stays of a plan: all of them, or where nothing manages that, without what finds no place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster import _native
from loadmaster.allocation.native import columns
from loadmaster.allocation.problem import Problem
from loadmaster.allocation.strategies.telamalloc import TelaMalloc
from loadmaster.planning.decisions import Packing

Ints = NDArray[np.int64]

_FAR = np.iinfo(np.int64).max
_NODES = 5_000
"""Of exact search, before the planner is told to fill less."""


def pack(start: Ints, end: Ints, size: Ints, *, capacity: int, alignment: int, value: NDArray[np.float64] | None = None) -> Packing:
    """Give each buffer an offset so that no two alive at once overlap and none ends past ``capacity``.

    Buffers are alive over [start, end), an empty lifetime counting as an instant, and take ``size`` bytes each at a
    multiple of ``alignment``. Where :func:`pack_all` finds nothing, each
    order places one buffer after another at its lowest free gap: longest-lived first,
    largest first (TensorFlow Lite), largest area, earliest. The first order that places everything wins, else the one
    that loses least ``value`` (by default bytes); a buffer that fits nowhere gets -1. O(n^2) time in vectorised steps,
    O(n) memory.
    """
    whole = pack_all(start, end, size, capacity=capacity, alignment=alignment)
    if whole is not None:
        return whole
    end = np.maximum(end, start + 1)
    load = most_alive(start, end, size)
    worth = size.astype(np.float64) if value is None else value
    rounded = -(-size // alignment) * alignment
    least, offsets = np.inf, np.full(len(size), -1, dtype=np.int64)
    for order in _orders(start, end, size):
        candidate = _place(order, start, end, rounded, size, capacity)
        lost = float(worth[candidate < 0].sum())
        if lost < least:
            least, offsets = lost, candidate
        if (candidate >= 0).all():
            break
    placed = offsets >= 0
    return Packing(offsets, int((offsets + size)[placed].max(initial=0)), load)


def pack_all(start: Ints, end: Ints, size: Ints, *, capacity: int, alignment: int) -> Packing | None:
    """Give every buffer an offset; None if the native first-fit orders, TelaMalloc and the exact search find none within their budgets."""
    end = np.maximum(end, start + 1)
    load = most_alive(start, end, size)
    offsets = _offsets(start, end, size, capacity, alignment) if load <= capacity else None
    return None if offsets is None else Packing(offsets, int((offsets + size).max(initial=0)), load)


def _offsets(start: Ints, end: Ints, size: Ints, capacity: int, alignment: int) -> Ints | None:
    none = np.full(len(size), -1, dtype=np.int64)
    problem = Problem(start, end, size, np.full(len(size), alignment, dtype=np.int64), none, none)
    arguments = columns(problem)
    empty = np.empty(0, dtype=np.int64)
    _, offsets, peak, _, _, interrupted = _native.allocate_greedy(*arguments, empty, np.inf)
    if interrupted:
        raise KeyboardInterrupt
    if peak > capacity:
        if (found := TelaMalloc(problem, capacity).run()) is not None:
            return found
        status, offsets, *_, interrupted = _native.fit_exact(*arguments, offsets, capacity, _NODES, np.inf, 0, -1, 1)
        peak = capacity if status in ("feasible", "optimal") else capacity + 1
        if interrupted:
            raise KeyboardInterrupt
    return np.asarray(offsets) if peak <= capacity else None


def _orders(start: Ints, end: Ints, size: Ints) -> list[Ints]:
    length, index = end - start, np.arange(len(size))
    keys = [(index, -size, -length), (index, -length, -size), (index, -(size.astype(np.float64) * length)), (index, -size, start)]
    return [np.lexsort(key) for key in keys]


def _place(order: Ints, start: Ints, end: Ints, rounded: Ints, size: Ints, capacity: int) -> Ints:
    """Lowest gap for each buffer in turn; ``rounded`` sizes keep every offset aligned."""
    offsets = np.full(len(size), -1, dtype=np.int64)
    # Placed buffers, kept sorted by offset.
    low, high = np.zeros(len(size), dtype=np.int64), np.zeros(len(size), dtype=np.int64)
    begins, ends = low.copy(), low.copy()
    count = 0
    for buffer in order:
        alive = (begins[:count] < end[buffer]) & (ends[:count] > start[buffer])
        offset = _lowest_gap(low[:count][alive], high[:count][alive], int(rounded[buffer]))
        if offset + size[buffer] > capacity:
            continue
        offsets[buffer] = offset
        at = int(np.searchsorted(low[:count], offset))
        for array, item in ((low, offset), (high, offset + rounded[buffer]), (begins, start[buffer]), (ends, end[buffer])):
            array[at + 1 : count + 1] = array[at:count].copy()
            array[at] = item
        count += 1
    return offsets


def _lowest_gap(low: Ints, high: Ints, size: int) -> int:
    """Lowest address with ``size`` free bytes among occupied ranges sorted by their low end."""
    if not len(low):
        return 0
    reach = np.maximum.accumulate(high)
    floor = np.concatenate([[0], reach])
    room = np.concatenate([low, [_FAR]]) - floor
    return int(floor[int(np.argmax(room >= size))])


def most_alive(start: Ints, end: Ints, size: Ints) -> int:
    """Most bytes alive at once; at one instant, ends come before starts, but an empty lifetime counts as an instant."""
    end = np.maximum(end, start + 1)
    when = np.concatenate([end, start])
    change = np.concatenate([-size, size])
    kind = np.concatenate([np.zeros(len(end)), np.ones(len(start))])
    return int(np.cumsum(change[np.lexsort((kind, when))]).max(initial=0))
