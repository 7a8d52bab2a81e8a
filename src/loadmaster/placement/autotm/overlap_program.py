"""The linear program of placements whose copies overlap computation: as large as the synchronous one, whatever the number of copies.

Bytes that leave the fast memory join a queue, where they still take room, and the engine drains it while kernels run, as fast as its
bandwidth and the time that passes allow. Bytes that come back arrive in a pool, where they take room until the kernels that need them run.
Either may also be copied between kernels, which takes time. In the queue and in the pool a byte is a byte, so that each engine and kernel
has one variable for all tensors. That relaxes the problem: copies are not whole, and a byte may come back before it has left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.placement.autotm.bound import lower_bound
from loadmaster.placement.autotm.linear_model import Solved
from loadmaster.placement.autotm.sequence_arrays import Floats, Ints, LiveRange, SequenceArrays
from loadmaster.placement.autotm.sparse_program import Prices, SparseProgram
from loadmaster.placement.sequence import CopyLink

_NONE = -1
_FINE = 2.0**-40
"""Prices of an engine are whole multiples of this, so that they sum exactly."""


@dataclass(frozen=True, eq=False)
class EnginePrices:
    """Multipliers of the overlapped problem.

    Attributes
    ----------
    places
        Those of memory and of kernels' parts, the latter with a total of 1.
    to_slow, to_fast
        Of a second of each engine while each kernel runs, shape (kernels,); the same array where they share a link.
    """

    places: Prices
    to_slow: Floats
    to_fast: Floats
    shared: bool

    @property
    def time(self) -> Floats:
        """What a second more of each kernel costs, shape (kernels,): one, less what the engines gain by it."""
        return 1.0 - (self.to_fast if self.shared else self.to_fast + self.to_slow)


class OverlapProgram(SparseProgram):
    """The program of one sequence and its limits in the solver's hands."""

    def __init__(self, arrays: SequenceArrays, link: CopyLink) -> None:
        self._parts: list[tuple[Ints, Ints, Floats]] = []
        nothing = np.zeros(arrays.tensor_count)
        super().__init__(replace(arrays, to_fast=nothing, to_slow=nothing), True)
        self.link = link
        self._queue()
        self._pool()
        self._engines()

    def _combinations(self, kernels: Ints, uses: Ints, tables: Floats) -> None:
        super()._combinations(kernels, uses, tables)
        at, which, index = np.nonzero(np.isfinite(tables))
        columns = np.arange(len(at)) + self.model.width - len(at)
        self._parts.append((kernels[at], columns, tables[at, which, index]))

    def _sums(self, computed: NDArray[np.bool_]) -> None:
        super()._sums(computed)
        kernels = np.flatnonzero(computed)
        self._parts.append((kernels, self.time[kernels], np.full(len(kernels), self.second)))

    def _queue(self) -> None:
        """Bytes that wait to be copied out, at every position: those that leave after the kernel before, less those copied."""
        arrays, model, positions = self.arrays, self.model, self.arrays.kernel_count + 1
        self.waiting = model.columns(np.zeros(positions), 0.0, np.append(np.full(positions - 1, np.inf), 0.0))
        self.drained = model.columns(np.zeros(arrays.kernel_count), 0.0, np.inf)
        self.block_out = model.columns(np.full(positions, self._byte / self.link.to_slow / self._second), 0.0, np.inf)
        rows = model.rows(np.zeros(positions), np.zeros(positions))
        model.entries(rows, self.waiting, np.ones(positions))
        model.entries(rows[1:], self.waiting[:-1], np.full(positions - 1, -1.0))
        model.entries(rows[1:], self.drained, np.ones(arrays.kernel_count))
        model.entries(rows, self.block_out, np.ones(positions))
        # Those that leave were dirty after a use and do not stay dirty until the next one that needs them.
        stays = np.flatnonzero((self.dirty != _NONE) & (self.before != _NONE))
        ends = np.flatnonzero(self.tail != _NONE)
        leaves = np.concatenate([self.before[stays], arrays.first[ends + 1] - 1])
        share = arrays.size[arrays.tensor[leaves]] / self._byte
        at = rows[arrays.kernel[leaves] + 1]
        for column in self._dirty_after(leaves):
            model.entries(at, column, -share)
        model.entries(at, np.concatenate([self.dirty[stays], self.tail[ends]]), share)
        self._occupy(np.arange(arrays.kernel_count), self.waiting[:-1])

    def _pool(self) -> None:
        """Bytes that have come back and wait for the kernel that needs them, after each kernel has taken its own."""
        arrays, model, kernels = self.arrays, self.model, self.arrays.kernel_count
        self.arrived = model.columns(np.zeros(kernels), 0.0, np.inf)
        self.fetched = model.columns(np.zeros(kernels), 0.0, np.inf)
        self.block_in = model.columns(np.full(kernels, self._byte / self.link.to_fast / self._second), 0.0, np.inf)
        rows = model.rows(np.zeros(kernels), np.zeros(kernels))
        model.entries(rows, self.arrived, np.ones(kernels))
        model.entries(rows[1:], self.arrived[:-1], np.full(kernels - 1, -1.0))
        model.entries(rows[1:], self.fetched[:-1], np.full(kernels - 1, -1.0))
        model.entries(rows, self.block_in, np.full(kernels, -1.0))
        reads = np.flatnonzero(arrays.reads)
        model.entries(rows[arrays.kernel[reads]], self.arrives[reads], arrays.size[arrays.tensor[reads]] / self._byte)
        self._occupy(np.arange(kernels), self.arrived)
        self._occupy(np.arange(kernels), self.fetched)

    def _occupy(self, kernels: Ints, columns: Ints) -> None:
        whole = np.ones(len(kernels))
        self._change(kernels, columns, whole)
        self._change(kernels + 1, columns, -whole)

    def _engines(self) -> None:
        """No engine works for longer than a kernel and the wait after it."""
        model, link, kernels = self.model, self.link, self.arrays.kernel_count
        stalls = model.columns(np.ones(kernels), 0.0, np.inf)
        out, back = self._byte / self._second / np.array([link.asynchronous_to_slow, link.asynchronous_to_fast])
        work = [(self.drained, out), (self.fetched, back)]
        self.engines = []
        for engine in [work] if link.shared else [work[:1], work[1:]]:
            rows = model.rows(np.full(kernels, -np.inf), np.zeros(kernels))
            self.engines.append(rows)
            for columns, seconds in engine:
                model.entries(rows, columns, np.full(kernels, seconds))
            model.entries(rows, stalls, np.full(kernels, -1.0))
            for at, columns, costs in self._parts:
                model.entries(rows[at], columns, -costs / self._second)

    def under_way(self, solved: Solved) -> Floats:
        """Bytes of fast memory that copies under way take while each kernel runs, shape (kernels,)."""
        value = solved.values
        return np.maximum(0.0, value[self.waiting[:-1]] + value[self.arrived] + value[self.fetched]) * self._byte

    def engine_prices(self, solved: Solved) -> EnginePrices:
        """Multipliers of all rows."""
        engines = [np.floor(np.clip(-solved.row_duals[rows], 0.0, 1.0) / _FINE) * _FINE for rows in self.engines]
        excess = np.maximum(sum(engines), 1.0)
        engines = [np.floor(engine / excess / _FINE) * _FINE for engine in engines]
        engines[-1] = np.minimum(engines[-1], 1.0 - sum(engines[:-1]))
        places = self.prices(solved)
        rest = np.maximum(1.0 - sum(engines), _FINE)
        shares = np.zeros_like(places.shares)
        for at, rows in ((1, self.by_fast), (2, self.by_slow)):
            there = rows != _NONE
            shares[there, at] = np.clip(solved.row_duals[rows[there]], 0.0, 1.0) / rest[there]
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
        shares[:, 0] = 1.0 - shares.sum(axis=1)
        return EnginePrices(replace(places, shares=np.maximum(shares, 0.0)), engines[0], engines[-1], len(engines) == 1)


def weighted(arrays: SequenceArrays, prices: EnginePrices) -> SequenceArrays:
    """Kernels' seconds as they count at these prices, rounded down."""
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


def copy_costs(arrays: SequenceArrays, bytes_: Ints, link: CopyLink, prices: EnginePrices) -> tuple[Floats, Floats]:
    """What a copy back before each use and a copy out after it cost at best: by an engine, while memory is paid for, or between kernels.

    The true cost of a byte is at least the cheapest way to bring or take one byte, and a tensor's room at least its bytes. Shapes (uses,).
    """
    out, back = _leaving(link, prices, 1), _returning(link, prices, 1)
    cyclic = (arrays.live_range == LiveRange.CYCLIC)[arrays.tensor]
    to_slow = np.where(cyclic, _leaving(link, prices, 2)[arrays.kernel + 1], out[arrays.kernel + 1])
    to_fast = np.where(cyclic, _returning(link, prices, 2)[arrays.kernel], back[arrays.kernel])
    size = (bytes_[arrays.tensor] * (1 - 1e-12)).astype(np.float64)
    leaving = np.minimum(to_slow, _while_used(arrays, link, prices))
    return (size * to_fast).astype(np.float64), (size * leaving).astype(np.float64)


def _leaving(link: CopyLink, prices: EnginePrices, rounds: int) -> Floats:
    """The least that it costs a byte that waits at each position to be copied out; in the last round the end is the end."""
    memory, busy, blocking = prices.places.memory.tolist(), (prices.to_slow / link.asynchronous_to_slow).tolist(), 1.0 / link.to_slow
    out = np.full(len(memory) + 1, np.inf)
    for _ in range(rounds):
        best = min(blocking, float(out[0]))
        out[-1] = best
        for p in range(len(memory) - 1, -1, -1):
            best = min(blocking, memory[p] + min(busy[p], best))
            out[p] = best
    return out


def _returning(link: CopyLink, prices: EnginePrices, rounds: int) -> Floats:
    """The least that it costs a byte to be there at each position."""
    memory, busy, blocking = prices.places.memory.tolist(), (prices.to_fast / link.asynchronous_to_fast).tolist(), 1.0 / link.to_fast
    back = np.full(len(memory) + 1, np.inf)
    for _ in range(rounds):
        best = min(blocking, float(back[-1]))
        back[0] = best
        for p in range(1, len(memory) + 1):
            best = min(blocking, memory[p - 1] + min(busy[p - 1], best))
            back[p] = best
    return back


def _while_used(arrays: SequenceArrays, link: CopyLink, prices: EnginePrices) -> Floats:
    """The least that it costs a byte to be copied out between the last write of a tensor and the end of each use; shape (uses,).

    A dirty tensor may be copied as soon as nothing changes it, though it stays in use. Inputs are dirty from the start; weights may have
    been so since the step before.
    """
    cost, blocking = prices.to_slow / link.asynchronous_to_slow, 1.0 / link.to_slow
    cheapest = np.full(len(arrays.kernel), np.inf)
    kernel, writes = arrays.kernel.tolist(), arrays.writes.tolist()
    for begin, end, live_range in zip(arrays.first.tolist(), arrays.first[1:].tolist(), arrays.live_range.tolist(), strict=False):
        low = blocking
        if live_range == LiveRange.CYCLIC:
            last = max((u for u in range(begin, end) if writes[u]), default=None)
            low = low if last is None else min(low, float(cost[kernel[last] + 1 :].min(initial=np.inf)))
        since = 0
        for u in range(begin, end):
            k = kernel[u]
            low = blocking if writes[u] else min(low, float(cost[since : k + 1].min(initial=np.inf)))
            since = k + 1
            cheapest[u] = low
    return cheapest


def overlap_bound(arrays: SequenceArrays, bytes_: Ints, link: CopyLink, prices: EnginePrices) -> float:
    """Seconds below which no placement comes whose copies may block or overlap computation; valid for all prices."""
    return lower_bound(weighted(arrays, prices), prices.places, True, copy_costs(arrays, bytes_, link, prices))
