"""Small sets of plain buffers in a few microseconds: one native call, and a check of what comes back."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster import _native
from loadmaster.allocation.bounds import load_bound
from loadmaster.allocations import EXHAUSTED, Allocation
from loadmaster.buffer_rules import LARGEST, problem_of

_MOST = 128
_FEW = 14
"""Buffers up to which plain Python compares pairs faster than numpy."""

Ints = NDArray[np.int64]


def allocate_at_once(buffers: tuple[Any, ...], capacity: int | None, seed: int, threads: int) -> Allocation | None:
    """Allocate int64 arrays (lower, upper, size) if that is proven optimal at once; None leaves the case to the general way."""
    if len(buffers) != 3 or seed < 0 or threads < 1 or not (capacity is None or type(capacity) is int):
        return None
    lower, upper, size = buffers
    if not (type(lower) is type(upper) is type(size) is np.ndarray and lower.dtype == upper.dtype == size.dtype == np.int64):
        return None
    if not (lower.ndim == upper.ndim == size.ndim == 1 and 0 < len(lower) == len(upper) == len(size) <= _MOST):
        return None
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        offsets, peak, bound, proven = _native.allocate_small(lower, upper, size)
    except (ValueError, TypeError, OverflowError):
        return None
    if not proven or (capacity is not None and peak > capacity) or not 0 < peak < LARGEST or not _holds(lower, upper, size, offsets, peak):
        return None
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    proof = (lambda: load_bound(problem_of((lower, upper, size)))) if peak == bound else EXHAUSTED
    return Allocation("optimal", offsets, peak, peak, capacity, "auto", seed, seconds, cpu_seconds, proof)


def _holds(lower: Ints, upper: Ints, size: Ints, offsets: Ints, peak: int) -> bool:
    """Whether no two overlap, nothing ends above the peak, and no number is out of range; compares all pairs."""
    if len(lower) > _FEW:
        top = offsets + size
        clash = lower[:, None] < upper
        clash &= clash.T
        apart = offsets[:, None] < top
        clash &= apart
        clash &= apart.T
        return bool(np.count_nonzero(clash) == len(lower) and lower.min() >= 0 and offsets.min() >= 0 and top.max() == peak)
    rows = list(zip(lower.tolist(), upper.tolist(), offsets.tolist(), (offsets + size).tolist(), strict=True))
    highest = 0
    for at, (begin, end, low, high) in enumerate(rows):
        if begin < 0 or low < 0:
            return False
        if high > highest:
            highest = high
        for first, last, bottom, top in rows[:at]:
            if first < end and begin < last and bottom < high and low < top:
                return False
    return highest == peak
