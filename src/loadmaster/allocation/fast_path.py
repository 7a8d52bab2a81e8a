"""Small sets of plain buffers in a few microseconds: one native call, and a check of what comes
back."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from loadmaster import _native
from loadmaster.allocation.answer import Allocation, Status
from loadmaster.allocation.native import lower_bound
from loadmaster.allocation.rules import problem_of
from loadmaster.core.arrays import WHOLE_LIMIT

_MOST_BUFFERS = 1024
"""Buffers of the largest problem that the fast path takes."""


def allocate_at_once(
    buffers: tuple[Any, ...], capacity: int | None, seed: int, threads: int
) -> Allocation | None:
    """Allocate int64 arrays (lower, upper, size) where a proven answer, or one that fits, is at
    hand; None leaves the rest to others."""
    if (
        len(buffers) != 3
        or type(seed) is not int
        or type(threads) is not int
        or seed < 0
        or threads < 1
        or not (capacity is None or type(capacity) is int)
    ):
        return None
    lower, upper, size = buffers
    if not (
        type(lower) is type(upper) is type(size) is np.ndarray
        and lower.dtype == upper.dtype == size.dtype == np.int64
    ):
        return None
    if not (
        lower.ndim == upper.ndim == size.ndim == 1
        and 0 < len(lower) == len(upper) == len(size) <= _MOST_BUFFERS
    ):
        return None
    wall, cpu = time.monotonic(), time.process_time()
    try:
        offsets, peak, bound = _native.allocate_small(lower, upper, size)
    except (ValueError, TypeError, OverflowError):
        return None
    enough = peak == bound if capacity is None else peak <= capacity
    if (
        not enough
        or not 0 < peak < WHOLE_LIMIT
        or not _native.packing_holds(lower, upper, size, offsets, peak)
    ):
        return None
    seconds, cpu_seconds = time.monotonic() - wall, time.process_time() - cpu
    proven = (lambda: lower_bound(problem_of((lower, upper, size)))) if peak == bound else None
    status: Status = "feasible" if proven is None else "optimal"
    asked = partial(problem_of, buffers)
    return Allocation(
        status,
        offsets,
        peak,
        bound,
        capacity,
        "auto",
        seed,
        seconds,
        cpu_seconds,
        proven,
        asked=asked,
    )
