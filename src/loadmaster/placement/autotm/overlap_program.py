"""The linear program of asynchronous placement (copies overlap computation), as large as the
synchronous one for any number of copies.

Bytes that leave the fast memory join a queue, where they still take room. The engine empties the
queue while kernels run, as fast as its bandwidth and the time that passes allow. Bytes that come
back arrive in a pool, where they take room until the kernels that need them run. Either may also be
copied between kernels, which takes time. In the queue and in the pool a byte is a byte, so that
each engine and kernel has one variable for all tensors. That relaxes the problem: copies are not
whole, and a byte may come back before it has left.

Rows for intervals (see ``copy_windows``) are added where the solution has bytes copied too early or
too late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.deadline import NO_DEADLINE, Deadline
from loadmaster.placement.autotm.copy_windows import CopyWindows, broken_intervals
from loadmaster.placement.autotm.linear_model import Solved
from loadmaster.placement.autotm.sequence_arrays import SequenceArrays
from loadmaster.placement.autotm.sparse_program import TOLD_APART, Prices, SparseProgram
from loadmaster.placement.sequence import CopyLink

_NONE = -1
_FINE = 2.0**-40
"""Prices of an engine are whole multiples of this, so that they sum exactly."""
_ROUNDS, _INTERVALS = 60, 60
"""How often rows for intervals are added, and how many at most each way."""
_GAIN, _PATIENCE = 1e-4, 3
"""Share of the objective that one of so many rounds must gain for another to be worth it: some gain
nothing before others that do."""
_DIVES, _AT_ONCE = 40, 4
"""Solutions on the way to whole paths, at most, and the part of all fractions that is fixed in
each: one in so many."""
_LIKELY, _UNLIKELY = 0.5, 0.05
"""Values above and below which fractions are fixed together: of two that exclude one another, one
is no likely one."""
_WHOLE = 1e-6
"""Distance from 0 or 1 up to which a value is whole."""
_THRIFT = 1e-3
"""What whole paths pay for the time of each copy, as a share of it, so that they make none that is
of no use."""


@dataclass(frozen=True, eq=False)
class EnginePrices:
    """Multipliers of the overlapped problem.

    Attributes
    ----------
    places
        Those of memory and of kernels' parts, the latter with a total of 1.
    to_slow, to_fast
        Of a second of each engine while each kernel runs, shape (kernels,); the same array where
        they share a link.
    """

    places: Prices
    to_slow: Floats
    to_fast: Floats
    shared: bool

    @property
    def time(self) -> Floats:
        """Price of a second more of each kernel, shape (kernels,): one, less the engines' gain from
        that second."""
        return 1.0 - (self.to_fast if self.shared else self.to_fast + self.to_slow)


@dataclass(frozen=True, eq=False)
class _Copies:
    """Copies one way: positions between which each is made, columns that sum to their bytes, and
    what an engine moves and what blocks."""

    begin: Ints
    end: Ints
    parts: list[tuple[Ints, Floats]]
    moved: Ints
    blocking: Ints


class OverlapProgram(SparseProgram):
    """The linear program of one sequence and its limits."""

    def __init__(self, arrays: SequenceArrays, link: CopyLink, apart: int = TOLD_APART) -> None:
        self._parts: list[tuple[Ints, Ints, Floats]] = []
        nothing = np.zeros(arrays.tensor_count)
        super().__init__(replace(arrays, to_fast=nothing, to_slow=nothing), True, apart=apart)
        self.link = link
        self.windows = CopyWindows(arrays)
        self._queue()
        self._pool()
        self._engines()

    def solve(self, deadline: Deadline = NO_DEADLINE, enough: float = np.inf) -> Solved:
        """Solve the program, adding rows for intervals in which too little is copied until it takes
        ``enough`` or they gain little."""
        solved, poor = self.model.solve(deadline), 0
        for _ in range(_ROUNDS):
            if (
                not solved.optimal
                or solved.objective * self._second >= enough
                or not self._limit_intervals(solved)
            ):
                break
            better = self.model.solve(deadline, after=solved)
            if not better.optimal:
                break
            solved, gained = better, better.objective - solved.objective
            poor = poor + 1 if gained < _GAIN * solved.objective else 0
            if poor == _PATIENCE:
                break
        return solved

    def dive(self, solved: Solved, deadline: Deadline = NO_DEADLINE) -> Solved:
        """Go on from a solution to one with hardly any fractions: fix the largest of them at one
        and tiny ones at nought, solve, and so on.

        Where that has no solution, fewer are fixed, or the largest alone, or that at nought.
        `_DIVES` solutions at most, each of them a few steps of the simplex method from the one
        before. Copies have a small price from then on: engines that stand still make some for
        nothing in the program, where those copied in part take no more room than those that stay.
        """
        model, whole = self.model, self.integers
        for columns, bandwidth in (
            (self.drained, self.link.asynchronous_to_slow),
            (self.fetched, self.link.asynchronous_to_fast),
        ):
            model.add_cost(
                columns, np.full(len(columns), _THRIFT * self._byte / bandwidth / self._second)
            )
        for _ in range(_DIVES):
            value = solved.values[whole]
            fractions = np.flatnonzero(np.abs(value - np.rint(value)) > _WHOLE)
            if not len(fractions):
                break
            for ones, noughts in _fixes(whole[fractions], value[fractions]):
                model.fix(ones, 1.0)
                model.fix(noughts, 0.0)
                tried = model.solve(deadline, after=solved)
                if tried.optimal or tried.interrupted:
                    break
                model.release()
                model.release()
            if not tried.optimal:
                break
            solved = tried
        return solved

    def _combinations(self, kernels: Ints, uses: Ints, tables: Floats) -> None:
        super()._combinations(kernels, uses, tables)
        at, which, index = np.nonzero(np.isfinite(tables))
        columns = np.arange(len(at)) + self.model.width - len(at)
        self._parts.append((kernels[at], columns, tables[at, which, index]))

    def _sums(self, computed: Mask) -> None:
        super()._sums(computed)
        kernels = np.flatnonzero(computed)
        self._parts.append((kernels, self.time[kernels], np.full(len(kernels), self.second)))

    def _queue(self) -> None:
        """Add rows for bytes that wait to be copied out at every position: those that left the
        kernel before, less those copied."""
        arrays, model, positions = self.arrays, self.model, self.arrays.kernel_count + 1
        self.waiting = model.columns(
            np.zeros(positions), 0.0, np.append(np.full(positions - 1, np.inf), 0.0)
        )
        self.drained = model.columns(np.zeros(arrays.kernel_count), 0.0, np.inf)
        self.block_out = model.columns(
            np.full(positions, self._byte / self.link.to_slow / self._second), 0.0, np.inf
        )
        rows = model.rows(np.zeros(positions), np.zeros(positions))
        model.entries(rows, self.waiting, np.ones(positions))
        model.entries(rows[1:], self.waiting[:-1], np.full(positions - 1, -1.0))
        model.entries(rows[1:], self.drained, np.ones(arrays.kernel_count))
        model.entries(rows, self.block_out, np.ones(positions))
        # Those that leave were dirty after a use and do not stay dirty until the next one that
        # needs them.
        stays = np.flatnonzero((self.dirty != _NONE) & (self.before != _NONE))
        ends = np.flatnonzero(self.tail != _NONE)
        leaves = np.concatenate([self.before[stays], arrays.first[ends + 1] - 1])
        self._leaving_between(stays)
        share = arrays.size[arrays.tensor[leaves]] / self._byte
        at = rows[arrays.kernel[leaves] + 1]
        for column in self._dirty_after(leaves):
            model.entries(at, column, -share)
        model.entries(at, np.concatenate([self.dirty[stays], self.tail[ends]]), share)
        self._occupy(np.arange(arrays.kernel_count), self.waiting[:-1])

    def _leaving_between(self, stays: Ints) -> None:
        """Note the copies out that must be complete before the next use in the same step, with the
        columns that sum to their bytes."""
        needed = stays[(self.arrays.reads[stays] > 0) & ~self.is_first[stays]]
        needed = needed[self.windows.since[self.before[needed]] >= 0]
        before, size = self.before[needed], self._share(needed)
        parts = [(column, size) for column in self._dirty_after(before)] + [
            (self.dirty[needed], -size)
        ]
        self._leaving = _Copies(
            self.windows.since[before],
            self.arrays.kernel[needed],
            parts,
            self.drained,
            self.block_out,
        )

    def _share(self, uses: Ints) -> Floats:
        return np.asarray(self.arrays.size[self.arrays.tensor[uses]] / self._byte)

    def _pool(self) -> None:
        """Add rows for bytes that were copied in and wait for their kernel, after each kernel has
        taken its own."""
        arrays, model, kernels = self.arrays, self.model, self.arrays.kernel_count
        self.arrived = model.columns(np.zeros(kernels), 0.0, np.inf)
        self.fetched = model.columns(np.zeros(kernels), 0.0, np.inf)
        self.block_in = model.columns(
            np.full(kernels, self._byte / self.link.to_fast / self._second), 0.0, np.inf
        )
        rows = model.rows(np.zeros(kernels), np.zeros(kernels))
        model.entries(rows, self.arrived, np.ones(kernels))
        model.entries(rows[1:], self.arrived[:-1], np.full(kernels - 1, -1.0))
        model.entries(rows[1:], self.fetched[:-1], np.full(kernels - 1, -1.0))
        model.entries(rows, self.block_in, np.full(kernels, -1.0))
        reads = np.flatnonzero(arrays.reads)
        model.entries(rows[arrays.kernel[reads]], self.arrives[reads], self._share(reads))
        after = reads[self.windows.before[reads] >= 0]
        parts = [(self.arrives[after], self._share(after))]
        self._returning = _Copies(
            self.windows.before[after], arrays.kernel[after], parts, self.fetched, self.block_in
        )
        self._occupy(np.arange(kernels), self.arrived)
        self._occupy(np.arange(kernels), self.fetched)

    def _occupy(self, kernels: Ints, columns: Ints) -> None:
        whole = np.ones(len(kernels))
        self._change(kernels, columns, whole)
        self._change(kernels + 1, columns, -whole)

    def _engines(self) -> None:
        """Add rows that let no engine work longer than a kernel and the wait after it."""
        model, link, kernels = self.model, self.link, self.arrays.kernel_count
        stalls = model.columns(np.ones(kernels), 0.0, np.inf)
        out, back = (
            self._byte
            / self._second
            / np.array([link.asynchronous_to_slow, link.asynchronous_to_fast])
        )
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

    def _limit_intervals(self, solved: Solved) -> int:
        """Add rows for intervals in which the solution copies too little; how many."""
        model, values, count = self.model, np.append(solved.values, 0.0), 0
        for copies in (self._leaving, self._returning):
            bytes_ = sum(
                (share * values[column] for column, share in copies.parts),
                np.zeros(len(copies.begin)),
            )
            for begin, end in broken_intervals(
                copies.begin,
                copies.end,
                bytes_,
                values[copies.moved],
                values[copies.blocking],
                _INTERVALS,
            ):
                row, count = model.rows(np.array([-np.inf]), np.zeros(1)), count + 1
                within = np.flatnonzero((copies.begin >= begin) & (copies.end <= end))
                for column, share in copies.parts:
                    model.entries(np.repeat(row, len(within)), column[within], share[within])
                for columns in (copies.moved[begin:end], copies.blocking[begin : end + 1]):
                    model.entries(
                        np.repeat(row, len(columns)), columns, np.full(len(columns), -1.0)
                    )
        return count

    def under_way(self, solved: Solved) -> Floats:
        """Return the bytes of fast memory that copies under way take while each kernel runs, shape
        (kernels,)."""
        value = solved.values
        return (
            np.maximum(0.0, value[self.waiting[:-1]] + value[self.arrived] + value[self.fetched])
            * self._byte
        )

    def fetched_before(self, solved: Solved) -> Floats:
        """Return the bytes that the engine has copied to the fast memory before each position,
        shape (kernels + 1,)."""
        return np.append(0.0, solved.values[self.fetched].cumsum()) * self._byte

    def engine_prices(self, solved: Solved) -> EnginePrices:
        """Return the multipliers of all rows."""
        engines = [
            np.floor(np.clip(-solved.row_duals[rows], 0.0, 1.0) / _FINE) * _FINE
            for rows in self.engines
        ]
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
        return EnginePrices(
            replace(places, shares=np.maximum(shares, 0.0)),
            engines[0],
            engines[-1],
            len(engines) == 1,
        )


def _fixes(columns: Ints, values: Floats) -> list[tuple[Ints, Ints]]:
    """Columns to fix at one and at nought, of those with fractions: what to try in turn."""
    order = np.argsort(-values, kind="stable")
    columns, values = columns[order], values[order]
    some = -(-len(columns) // _AT_ONCE)
    likely = columns[:some][values[:some] > _LIKELY]
    unlikely = (
        columns[values < _UNLIKELY] if len(likely) else columns[-some:][values[-some:] < _LIKELY]
    )
    fewer = likely[: -(-len(likely) // _AT_ONCE)]
    none, largest = columns[:0], columns[:1]
    fixes = [(likely, unlikely), (fewer, none), (largest, none), (none, largest)]
    return [(ones, noughts) for ones, noughts in fixes if len(ones) + len(noughts)]
