"""A lower bound on the time of every placement, valid for any prices of memory and engines.

The Lagrangian of the program in `program`: every byte of fast memory has a price while each kernel
runs, every second of an engine has one, and each kernel's time is at least any weighted mean of its
arithmetic's and both memories' times, so that the bound is

    sum over kernels of min over algorithms, places (seconds x (1 - engines) + memory x (workspace -
    limit))  +  sum over tensors of the cheapest path

A copy costs what it costs at its cheapest time: between kernels, or on an engine after the last
write and before the use that needs it, including the memory held meanwhile. The bound is evaluated
in integer arithmetic: no solver is trusted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Bits, Floats, Ints
from loadmaster.placement.autotm.sequence_arrays import LiveRange, SequenceArrays
from loadmaster.placement.sequence import ROUNDING, CopyLink

_FIXED_POINT = 2**24
"""Denominator to which fractions are rounded down."""
_MOST_BITS = 100
"""Most bits after the binary point in the evaluation of a bound."""
_WIDE = 120
"""Most bits of sums in the native kernel."""


@dataclass(frozen=True, eq=False)
class Prices:
    """Multipliers of the bound, proposed by a solver.

    Attributes
    ----------
    memory
        Seconds per byte while each kernel runs, shape (kernels,).
    shares
        Weights of arithmetic, fast memory and slow memory in each kernel's time, with sum 1; shape
        (kernels, 3).
    surcharge
        Seconds of each use in the slow memory, in kernels with variables for combinations of
        places, shape (uses,).
    noted
        Uses in such combinations whose kernel has no table, shape (uses,).
    to_slow, to_fast
        Price of a second of each engine while each kernel runs, shape (kernels,); the same array if
        the engines share a link.
    """

    memory: Floats
    shares: Floats
    surcharge: Floats
    noted: Bits
    to_slow: Floats
    to_fast: Floats

    @property
    def time(self) -> Floats:
        """Price of one more second of each kernel, shape (kernels,): 1 minus the prices of the
        engines, which gain that second."""
        shared = self.to_fast is self.to_slow
        return 1.0 - (self.to_fast if shared else self.to_fast + self.to_slow)


def free_prices(arrays: SequenceArrays) -> Prices:
    """Return prices at which memory is free and kernels take their arithmetic only."""
    uses, nothing = len(arrays.kernel), np.zeros(arrays.kernel_count)
    shares = np.tile([1.0, 0.0, 0.0], (arrays.kernel_count, 1))
    bits = np.zeros(uses, dtype=np.uint8)
    return Prices(nothing, shares, np.zeros(uses), bits, nothing, nothing)


def use_costs(arrays: SequenceArrays, prices: Prices) -> tuple[Floats, Floats]:
    """Return the cost of each use in the fast and in the slow memory at these prices, in seconds,
    shape (uses,) each."""
    shares = prices.shares[arrays.kernel]
    fast = arrays.fast * shares[:, 1]
    slow = np.where(np.isfinite(arrays.slow), arrays.slow, 0.0) * shares[:, 2]
    combined = (
        (np.diff(arrays.first_entry) > 0)
        | (np.bincount(arrays.kernel, prices.noted, arrays.kernel_count) > 0)
    )[arrays.kernel]
    fast[combined], slow[combined] = 0.0, prices.surcharge[combined]
    return fast, slow


def weighted(arrays: SequenceArrays, prices: Prices) -> SequenceArrays:
    """Scale the seconds of kernels by these prices, rounded down."""
    time = prices.time

    def scaled(seconds: Floats, kernels: Ints) -> Floats:
        """Return times with the weight of their kernels, rounded down; infinite ones stay."""
        weight = time[kernels]
        finite = np.where(np.isfinite(seconds), seconds, 0.0)
        less = np.where(weight < 1, np.nextafter(finite * weight, 0.0), finite)
        return np.where(np.isfinite(seconds), less, np.inf)

    kernels = np.arange(arrays.kernel_count)
    return replace(
        arrays,
        seconds=scaled(arrays.seconds, np.repeat(kernels, np.diff(arrays.first_algorithm))),
        table=scaled(arrays.table, np.repeat(kernels, np.diff(arrays.first_entry))),
        fast=scaled(arrays.fast, arrays.kernel),
        slow=scaled(arrays.slow, arrays.kernel),
    )


def copy_costs(
    arrays: SequenceArrays, prices: Prices, link: CopyLink | None
) -> tuple[Floats, Floats]:
    """Lower bounds of the costs of a copy in before each use and a copy out after it: on an engine
    of the ``link`` (None: copies do not overlap), or between kernels.

    A byte costs at least the cheapest way to copy one byte while the tensor can be copied. Shapes
    (uses,). O(uses x kernels between them).
    """
    tensor, kernel = arrays.tensor, arrays.kernel
    if link is None:
        return arrays.to_fast[tensor], arrays.to_slow[tensor]
    memory, before, since = prices.memory, arrays.last_write_before, arrays.last_write
    out, back = (
        prices.to_slow / link.asynchronous_to_slow,
        prices.to_fast / link.asynchronous_to_fast,
    )
    to_slow, to_fast = 1.0 / link.to_slow, 1.0 / link.to_fast
    rounds = np.where(arrays.live_range[tensor] == LiveRange.CYCLIC, 1, 0)
    leaving = _waiting(memory, out, to_slow)[rounds, kernel + 1]
    returning = _waiting(memory[::-1], back[::-1], to_fast)[:, ::-1][rounds, kernel]
    # While memory is held for what waits: between a use and the next, or since the last write.
    rent = np.append(0.0, memory.cumsum())
    rounding_error = rent[-1] * len(rent) * 2.0**-52
    following = np.where(arrays.following > np.arange(len(kernel)), kernel[arrays.following], 0)
    waits = _least(rent[1:] + out, kernel + 1, following) - rent[kernel + 1] - rounding_error
    held = _least(back - rent[:-1], np.maximum(before, 0), kernel) + rent[kernel] - rounding_error
    leaving = np.maximum(leaving, np.where(following > 0, np.minimum(waits, to_slow), 0.0))
    returning = np.maximum(returning, np.where(before >= 0, np.minimum(held, to_fast), 0.0))
    # A dirty tensor may be copied as soon as nothing changes it, though it stays in use.
    used = _least(out, np.maximum(since, 0), kernel + 1)
    used = np.where(since < 0, out.min(initial=np.inf), used)
    size = arrays.bytes[tensor].astype(np.float64) * (1 - ROUNDING)
    cost: Floats = size * np.minimum(leaving, np.minimum(used, to_slow))
    return size * returning, cost


def _waiting(memory: Floats, busy: Floats, blocking: float) -> Floats:
    """Least cost of copying out a byte that waits from each position on: until the end of the step,
    or into the next step; shape (2, positions)."""
    cost = np.full((2, len(memory) + 1), np.inf)
    rent, engine = memory.tolist(), busy.tolist()
    for number in range(2):
        best = cost[number, -1] = min(blocking, float(cost[0, 0]))
        for p in range(len(rent) - 1, -1, -1):
            best = cost[number, p] = min(blocking, rent[p] + min(engine[p], best))
    return cost


def _least(values: Floats, begin: Ints, end: Ints) -> Floats:
    """Minimum of each ``values[begin:end]``, infinite for an empty range."""
    ranges = np.stack([begin, np.maximum(begin, end)], axis=1).reshape(-1)
    least = np.minimum.reduceat(np.append(values, [np.inf, np.inf]), ranges)[::2]
    return np.where(begin < end, least, np.inf)


def lower_bound(
    arrays: SequenceArrays,
    prices: Prices,
    moves: bool,
    link: CopyLink | None = None,
    divisible: bool = False,
) -> float:
    """Lower bound of the seconds of every placement, rounded down; valid for any prices.

    With a ``link``, copies may overlap kernels. With ``divisible`` tensors it holds for every
    division, if the prices come from a program without combinations of places.
    """
    if divisible:
        # Pieces take no more room than their bytes.
        arrays = replace(arrays, size=arrays.bytes)
    to_fast, to_slow = copy_costs(arrays, prices, link)
    arrays = weighted(arrays, prices)
    shift = _shift(arrays, prices, float(to_fast.sum() + 2 * to_slow.sum()))
    found = arrays.problem_with(to_fast, to_slow).bound(
        memory=np.floor(np.ldexp(prices.memory, shift)).astype(np.int64),
        shares=np.floor(prices.shares * _FIXED_POINT).astype(np.int32),
        surcharge=prices.surcharge,
        noted=prices.noted,
        shift=shift,
        moves=moves,
    )
    return (1 - ROUNDING) * found if divisible else found


def _shift(arrays: SequenceArrays, prices: Prices, copies: float) -> int:
    """Return the exponent of the unit of the integer arithmetic, 2^-shift seconds."""
    kernels = (arrays.table, arrays.seconds, arrays.fast, arrays.slow, np.abs(prices.surcharge))
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
