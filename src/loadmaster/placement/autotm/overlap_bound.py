"""The proven bound of asynchronous placement, from multipliers of its linear program.

At these prices the problem falls apart into kernels and tensors; each tensor's copies cost what
their cheapest moment costs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.placement.autotm.bound import lower_bound
from loadmaster.placement.autotm.copy_windows import CopyWindows, RangeMinimum
from loadmaster.placement.autotm.overlap_program import EnginePrices
from loadmaster.placement.autotm.sequence_arrays import LiveRange, SequenceArrays
from loadmaster.placement.sequence import CopyLink


def weighted(arrays: SequenceArrays, prices: EnginePrices) -> SequenceArrays:
    """Scale the kernels' seconds by these prices, rounded down."""
    weight = prices.time
    algorithms = weight[np.repeat(np.arange(arrays.kernel_count), np.diff(arrays.first_algorithm))]
    entries = weight[np.repeat(np.arange(arrays.kernel_count), np.diff(arrays.first_entry))]
    of_uses = weight[arrays.kernel]

    def scaled(seconds: Floats, weights: Floats) -> Floats:
        finite = np.isfinite(seconds)
        return np.where(finite, np.nextafter(np.where(finite, seconds, 0.0) * weights, 0.0), np.inf)

    return replace(
        arrays,
        seconds=scaled(arrays.seconds, algorithms),
        table=scaled(arrays.table, entries),
        fast=scaled(arrays.fast, of_uses),
        slow=scaled(arrays.slow, of_uses),
    )


def copy_costs(
    arrays: SequenceArrays, bytes_: Ints, link: CopyLink, prices: EnginePrices
) -> tuple[Floats, Floats]:
    """Bound the cost of a copy in before each use and of a copy out after it, by an engine or
    between kernels.

    The true cost of a byte is at least the cheapest way to bring or take one byte while the tensor
    can be copied, and a tensor's room at least its bytes. Shapes (uses,). O(uses + kernels log
    kernels).
    """
    out, back = _leaving(link, prices, 1), _returning(link, prices, 1)
    cyclic = (arrays.live_range == LiveRange.CYCLIC)[arrays.tensor]
    to_slow = np.where(cyclic, _leaving(link, prices, 2)[arrays.kernel + 1], out[arrays.kernel + 1])
    to_fast = np.where(cyclic, _returning(link, prices, 2)[arrays.kernel], back[arrays.kernel])
    in_time, from_then = _within_windows(arrays, link, prices)
    size = (bytes_[arrays.tensor] * (1 - 1e-12)).astype(np.float64)
    leaving = np.minimum(np.maximum(to_slow, in_time), _while_used(arrays, link, prices))
    return (size * np.maximum(to_fast, from_then)).astype(np.float64), (size * leaving).astype(
        np.float64
    )


def _within_windows(
    arrays: SequenceArrays, link: CopyLink, prices: EnginePrices
) -> tuple[Floats, Floats]:
    """Return the least cost of copying out a byte between a use and the next, and in between the
    last write and a use; 0 if unlimited."""
    memory, windows, kernel = prices.places.memory, CopyWindows(arrays), arrays.kernel
    rent = np.append(0.0, memory.cumsum())
    # What rounding may have added to differences of sums.
    doubt = rent[-1] * len(rent) * 2.0**-52
    follows = arrays.following > np.arange(len(kernel))
    waits = RangeMinimum(rent[1:] + prices.to_slow / link.asynchronous_to_slow)
    out = waits(kernel + 1, kernel[arrays.following]) - rent[kernel + 1] - doubt
    held = RangeMinimum(prices.to_fast / link.asynchronous_to_fast - rent[:-1])
    back = held(np.maximum(windows.before, 0), kernel) + rent[kernel] - doubt
    return (
        np.where(follows, np.minimum(out, 1.0 / link.to_slow), 0.0),
        np.where(windows.before >= 0, np.minimum(back, 1.0 / link.to_fast), 0.0),
    )


def _leaving(link: CopyLink, prices: EnginePrices, rounds: int) -> Floats:
    """Return the least cost of copying out a byte that waits at each position; in the last round
    the step ends."""
    memory, busy, blocking = (
        prices.places.memory.tolist(),
        (prices.to_slow / link.asynchronous_to_slow).tolist(),
        1.0 / link.to_slow,
    )
    out = np.full(len(memory) + 1, np.inf)
    for _ in range(rounds):
        best = min(blocking, float(out[0]))
        out[-1] = best
        for p in range(len(memory) - 1, -1, -1):
            best = min(blocking, memory[p] + min(busy[p], best))
            out[p] = best
    return out


def _returning(link: CopyLink, prices: EnginePrices, rounds: int) -> Floats:
    """Return the least cost of a byte being copied in at each position."""
    memory, busy, blocking = (
        prices.places.memory.tolist(),
        (prices.to_fast / link.asynchronous_to_fast).tolist(),
        1.0 / link.to_fast,
    )
    back = np.full(len(memory) + 1, np.inf)
    for _ in range(rounds):
        best = min(blocking, float(back[-1]))
        back[0] = best
        for p in range(1, len(memory) + 1):
            best = min(blocking, memory[p - 1] + min(busy[p - 1], best))
            back[p] = best
    return back


def _while_used(arrays: SequenceArrays, link: CopyLink, prices: EnginePrices) -> Floats:
    """Return the least cost of copying out a byte between the last write of a tensor and the end of
    each use, shape (uses,).

    A dirty tensor may be copied as soon as nothing changes it, though it stays in use. Inputs are
    dirty from the start; weights may have been so since the step before.
    """
    cost, blocking = prices.to_slow / link.asynchronous_to_slow, 1.0 / link.to_slow
    cheapest = np.full(len(arrays.kernel), np.inf)
    kernel, writes = arrays.kernel.tolist(), arrays.writes.tolist()
    for begin, end, live_range in zip(
        arrays.first.tolist(), arrays.first[1:].tolist(), arrays.live_range.tolist(), strict=False
    ):
        low = blocking
        if live_range == LiveRange.CYCLIC:
            last = max((u for u in range(begin, end) if writes[u]), default=None)
            low = (
                low
                if last is None
                else min(low, float(cost[kernel[last] + 1 :].min(initial=np.inf)))
            )
        since = 0
        for u in range(begin, end):
            k = kernel[u]
            low = (
                blocking if writes[u] else min(low, float(cost[since : k + 1].min(initial=np.inf)))
            )
            since = k + 1
            cheapest[u] = low
    return cheapest


def overlap_bound(
    arrays: SequenceArrays, bytes_: Ints, link: CopyLink, prices: EnginePrices
) -> float:
    """Compute seconds that every placement takes at least, whether copies block or overlap
    computation; valid for all prices."""
    return lower_bound(
        weighted(arrays, prices), prices.places, True, copy_costs(arrays, bytes_, link, prices)
    )
