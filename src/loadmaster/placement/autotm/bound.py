"""A lower bound on the time of every placement, valid for any prices of memory.

The Lagrangian of AutoTM's program: every byte of fast memory has a price while each kernel runs,
and each kernel's time is at least any weighted mean of its arithmetic's and both memories' times.
What remains separates into tensors, each of which takes its cheapest path (a shortest path), and
kernels. The bound is evaluated in whole numbers by our own arithmetic: no solver is trusted for it.
"""

from __future__ import annotations

import math

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.placement.autotm.sequence_arrays import SequenceArrays
from loadmaster.placement.autotm.sparse_program import Prices

_FIXED_POINT = 2**24
"""Fractions are rounded down to whole multiples of one part in this many."""
_MOST_BITS = 100
"""Bits after the binary point, at most, in which a bound is evaluated."""
_WIDE = 120
"""Bits within which sums of the native kernel stay."""


def lower_bound(
    arrays: SequenceArrays, prices: Prices, moves: bool, copies: tuple[Floats, Floats] | None = None
) -> float:
    """Compute seconds that every placement takes at least; valid for all prices, rounded down.

    ``copies`` are seconds of a copy in and a copy out at each use, shape (uses,) each, if they
    differ between uses of a tensor.
    """
    shares = np.floor(prices.shares * _FIXED_POINT).astype(np.int32)
    to_fast, to_slow = copies or (arrays.to_fast[arrays.tensor], arrays.to_slow[arrays.tensor])
    shift = _shift(arrays, prices, float(to_fast.sum() + 2 * to_slow.sum()))
    memory = np.floor(np.ldexp(prices.memory, shift)).astype(np.int64)
    problem = arrays.problem_with(to_fast, to_slow) if copies else arrays.problem
    return problem.bound(
        memory=memory,
        shares=shares,
        surcharge=prices.surcharge,
        noted=prices.noted,
        shift=shift,
        moves=moves,
    )


def _shift(arrays: SequenceArrays, prices: Prices, copies: float) -> int:
    """How fine the whole numbers can be: units of 2^-shift seconds."""
    kernels = (
        arrays.table,
        arrays.seconds,
        arrays.fast,
        arrays.slow[np.isfinite(arrays.slow)],
        np.abs(prices.surcharge),
    )
    seconds = copies + sum(float(part[np.isfinite(part)].sum()) for part in kernels)
    bytes_ = (
        float(arrays.size.sum())
        + float(arrays.limit.max(initial=0))
        + float(arrays.workspace.sum())
        + 1.0
    )
    largest = max(seconds, bytes_ * float(prices.memory.sum()), 1e-30)
    dearest = max(float(prices.memory.max(initial=0.0)), 1e-30)
    return max(0, min(_MOST_BITS, _WIDE - math.frexp(largest)[1], 62 - math.frexp(dearest)[1]))
