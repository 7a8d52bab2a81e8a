"""AutoTM's integer program (ASPLOS 2020, section 4) in a form that solves fast: few variables, few
entries in each row.

Of use ``u`` of a tensor, ``a[u] + d[u] + c[u]`` is 1 if the kernel finds it in the fast memory: it
has just arrived, or has stayed since the use before, dirty or clean. Minimise

    sum over kernels of time[k]  +  sum over positions of block_out[p] / out + block_in[p] / in

    occupied[k] = occupied[k - 1] + bytes that came - bytes that went  <=  limit[k] - workspace[k]
    time[k] >= arithmetic; >= seconds of operands in the fast memory; >= of those in the slow one
    waiting[p] = waiting[p - 1] + bytes that left dirty - drained[p - 1] - block_out[p]
    arrived[k] = arrived[k - 1] + fetched[k - 1] + block_in[k] - bytes that arrive for k
    drained[k] / out + fetched[k] / in <= time[k] + stall[k], each engine by itself if there are two

What left and waits, and what arrived and waits, takes room too. In the queue and in the pool a byte
is a byte: each engine and kernel has one variable for all tensors. That relaxes the problem, as
copies are not whole, and a byte may come back before it has left. Rows for intervals (`Windows`)
are added where the solution has bytes copied too early or too late. Without overlap the queues
vanish: copies cost what they block, tensor by tensor.

Where operands that matter to a kernel's time are few, or the kernel was measured, there is a
variable for each combination of their places instead of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.linear_program import LinearProgram, Solved
from loadmaster.core.progress import NO_DEADLINE, Deadline
from loadmaster.placement.autotm.bound import Prices
from loadmaster.placement.autotm.sequence_arrays import (
    LiveRange,
    SequenceArrays,
    TensorPaths,
    fast_in,
    least_seconds,
    least_workspace,
)
from loadmaster.placement.sequence import CopyLink

_NONE = -1
_MATTERS = 1e-3
"""Share of a kernel's time below which an operand's place does not enter its combinations."""
TOLD_APART = 4
"""The most operands of a kernel whose combinations of places are variables."""
_FINE = 2.0**-40
"""Prices of an engine are whole multiples of this, so that they sum exactly."""
_ROUNDS, _INTERVALS = 60, 60
"""How often rows for intervals are added, and how many at most each way."""
_GAIN, _PATIENCE = 1e-4, 3
"""Share of the objective that one of so many rounds must gain for another to be worth it: some gain
nothing before others that do."""

_LONGEST = 512
"""Kernels in the longest interval that is looked at."""
_APART = 2
"""Intervals of which both ends are no further apart than this say nearly the same."""
_LOOKED_AT = 20_000
"""Intervals looked at, those that a solution breaks most first."""
_LEAST_MISSING = 1e-4
"""Bytes, in units of the program, that must be missing for an interval to be worth a row."""


class Shares(NamedTuple):
    """Share of each tensor in the fast memory at its uses, in the gaps before them, and at the end;
    as in `TensorPaths`."""

    uses: Floats
    gaps: Floats
    tail: Floats

    def rounded(self) -> TensorPaths:
        """Return the paths of a solution: shares above one half are in the fast memory."""
        return TensorPaths(*(np.asarray(part > 0.5, dtype=np.uint8) for part in self))


@dataclass(frozen=True, eq=False)
class _Copies:
    """Copies in one direction: the window of positions of each, the columns that sum to its bytes,
    and the columns of bytes moved by an engine and by blocking copies."""

    begin: Ints
    end: Ints
    parts: list[tuple[Ints, Floats]]
    moved: Ints
    blocking: Ints


_LEAST_UNIT = 1e-18
"""Unit of time, at least, as a share of the longest time: HiGHS takes numbers from 1e20 on for
infinite."""


class PlacementProgram:
    """The program of one sequence and its limits.

    With ``moves`` false every tensor is placed once. With a ``link`` copies overlap kernels.
    Combinations of places are variables in computed kernels where at most ``apart`` operands
    matter.
    """

    def __init__(
        self,
        arrays: SequenceArrays,
        moves: bool,
        link: CopyLink | None = None,
        apart: int = TOLD_APART,
    ) -> None:
        self.arrays, self.link, self.apart = arrays, link, apart
        self.model = LinearProgram("strategy 'autotm'", interruptible=True)
        fast = np.concatenate([least_seconds(arrays), arrays.fast, arrays.table])
        slow = np.concatenate([fast, arrays.slow, arrays.to_fast, arrays.to_slow])
        longest = slow.max(where=np.isfinite(slow), initial=0.0)
        typical = fast.mean(where=np.isfinite(fast))
        self.second = float(max(typical, longest * _LEAST_UNIT)) or 1.0
        """Seconds per unit of the objective."""
        self._byte = float(arrays.size.max(initial=1))
        self._measured = np.diff(arrays.first_entry) > 0
        self._size = arrays.size[arrays.tensor] / self._byte
        self._owner = np.repeat(np.arange(arrays.kernel_count), np.diff(arrays.first_algorithm))
        self._parts: list[tuple[Ints, Ints, Floats]] = []
        used, uses = np.diff(arrays.first) > 0, np.arange(len(arrays.kernel))
        self.is_first = np.isin(uses, arrays.first[:-1][used])
        self._outputs = np.flatnonzero((arrays.live_range == LiveRange.OUTPUT) & used)
        self._last = arrays.first[self._outputs + 1] - 1
        self.before = np.full(len(uses), _NONE)
        cyclic = arrays.live_range[arrays.tensor] == LiveRange.CYCLIC
        follows = cyclic | (arrays.following != uses)
        self.before[arrays.following[follows]] = uses[follows]
        around = self.is_first & cyclic
        self.tail = np.full(arrays.tensor_count, _NONE)
        self._add_moves(around) if moves else self._placed_once()
        self._fast = (self.arrives, self.dirty, self.clean)
        must = ~np.isfinite(arrays.slow) & ~self._measured[arrays.kernel]
        self._sum(self._fast, low=np.where(must, 1.0, -np.inf), high=1.0)
        self._memory()
        self._add_kernels()
        if link:
            self._queue(link)
            self._pool(link)
            self._engines(link)

    def _sum(
        self,
        plus: tuple[Ints, ...],
        minus: tuple[Ints, ...] = (),
        low: float | Floats = -np.inf,
        high: float | Floats = 0.0,
    ) -> Ints:
        """Add rows: the sum of some columns minus the sum of others, within bounds."""
        terms = [(columns, 1.0) for columns in plus] + [(columns, -1.0) for columns in minus]
        return self.model.rows(low, high, *terms)

    # --- paths

    def _add_moves(self, around: Mask) -> None:
        """Add the variables of tensors that may move: at each use a tensor is in the slow memory,
        arrives, or stays dirty or clean. ``around`` marks first uses of tensors that are kept from
        step to step."""
        arrays, model, outputs, last = self.arrays, self.model, self._outputs, self._last
        reads, writes = arrays.reads > 0, arrays.writes > 0
        supplied = self.is_first & (arrays.live_range[arrays.tensor] == LiveRange.INPUT)
        soiled = arrays.live_range == LiveRange.INPUT
        soiled[arrays.tensor[writes]] = True
        has_before = self.before != _NONE
        dirty = (reads | around) & soiled[arrays.tensor] & (has_before | supplied)
        clean = reads & has_before & ~writes[np.maximum(self.before, 0)]
        stays = dirty & ~supplied
        charged = 0.0 if self.link else 1.0 / self.second
        copy_out = charged * arrays.to_slow[arrays.tensor]
        # Leaving while dirty costs a copy: charged for being dirty, refunded for staying.
        pays = np.zeros(len(reads))
        for before in (self.before[stays], last):
            pays[before] = copy_out[before]
        paid = np.where(writes, pays, 0.0)
        self.arrives = model.columns(
            np.where(reads, charged * arrays.to_fast[arrays.tensor], 0.0) + paid
        )
        self.dirty = _spread(
            dirty, model.columns((pays - np.where(supplied, 0.0, copy_out))[dirty])
        )
        self.clean = _spread(clean, model.columns(paid[clean]))
        self.tail[outputs] = model.columns(-charged * arrays.to_slow[outputs])
        self._sum((self.dirty[stays],), self._dirty_after(self.before[stays]))
        self._sum((self.tail[outputs],), self._dirty_after(last))
        self._sum(
            (self.clean[clean],), tuple(c[self.before[clean]] for c in (self.clean, self.arrives))
        )

    def _dirty_after(self, uses: Ints) -> tuple[Ints, ...]:
        """Columns whose sum is 1 if the tensor is dirty after each of ``uses``, else 0."""
        writes = self.arrays.writes[uses] > 0
        made = (np.where(writes, columns[uses], _NONE) for columns in (self.clean, self.arrives))
        return (self.dirty[uses], *made)

    def _placed_once(self) -> None:
        """Use one variable for the whole lifetime of each tensor."""
        arrays = self.arrays
        chosen = self.model.columns(np.zeros(arrays.tensor_count))
        made = self.is_first & (arrays.live_range[arrays.tensor] >= LiveRange.INNER)
        self.arrives = np.where(made, chosen[arrays.tensor], _NONE)
        self.clean = np.where(made, _NONE, chosen[arrays.tensor])
        self.dirty = np.full(len(made), _NONE)
        self.tail[self._outputs] = chosen[self._outputs]

    # --- memory

    def _memory(self) -> None:
        """Add rows for occupancy, and a variable for each algorithm of kernels with several."""
        arrays, model = self.arrays, self.model
        several = np.diff(arrays.first_algorithm) > 1
        free = arrays.limit - np.where(several, 0, least_workspace(arrays))
        self.occupied = model.columns(np.zeros(len(free)), 0.0, free / self._byte)
        before = np.append(_NONE, self.occupied[:-1])
        self._change_rows = np.append(
            self._sum((self.occupied,), (before[: len(free)],), low=0.0), _NONE
        )
        self._changes()
        chosen = several[self._owner]
        self.algorithm = _spread(chosen, model.columns(np.zeros(int(chosen.sum()))))
        self.room = _spread(
            several, self._sum((self.occupied[several],), high=arrays.limit[several] / self._byte)
        )
        one = _spread(several, model.rows(np.ones(int(several.sum())), 1.0))
        model.entries(one[self._owner], self.algorithm, 1.0)
        model.entries(self.room[self._owner], self.algorithm, arrays.workspace / self._byte)

    def _changes(self) -> None:
        """Bytes that enter and leave."""
        arrays, size = self.arrays, self._size
        self._change(arrays.kernel, self.arrives, size)
        for column in self._fast:
            self._change(arrays.kernel + 1, column, -size)
        follows = np.flatnonzero(self.before != _NONE)
        around = np.flatnonzero(
            self.is_first & (arrays.live_range[arrays.tensor] != LiveRange.INNER)
        )
        for column in (self.dirty, self.clean):
            # Stays from the use before: there from its end on; round the end of time, from the
            # start too.
            self._change(arrays.kernel[self.before[follows]] + 1, column[follows], size[follows])
            self._change(np.zeros_like(around), column[around], size[around])
        tail = self.tail[self._outputs]
        self._change(arrays.kernel[self._last] + 1, tail, size[self._last])

    def _change(self, kernels: Ints, columns: Ints, sizes: float | Floats) -> None:
        """Record bytes that enter or leave before kernels."""
        self.model.entries(self._change_rows[kernels], columns, -np.asarray(sizes))

    # --- kernels

    def _add_kernels(self) -> None:
        """Add the time of every kernel: by a table of the places of its operands where it is
        measured or its arithmetic hides operands' times, else by its lower bounds."""
        arrays = self.arrays
        self.time = np.full(arrays.kernel_count, _NONE)
        self.least_rows = np.full((arrays.kernel_count, 3), _NONE)
        """Rows for the lower bounds of each kernel's time: arithmetic, fast and slow memory."""
        self.tied = np.full(len(arrays.kernel), _NONE)
        self.noted = np.zeros(len(arrays.kernel), dtype=bool)
        finite = np.where(np.isfinite(arrays.slow), arrays.slow, 0.0)
        sums: list[Floats] = [
            np.bincount(arrays.kernel, part, arrays.kernel_count).astype(np.float64)
            for part in (arrays.fast, finite)
        ]
        told = self._told_apart(np.maximum(arrays.fast, finite), sums)
        self.noted[told] = True
        tabled: dict[tuple[int, ...], list[tuple[int, Ints, Floats]]] = {}
        counts = np.bincount(arrays.kernel[told], minlength=arrays.kernel_count)
        in_order = told[np.argsort(arrays.kernel[told], kind="stable")]
        starts = counts.cumsum() - counts
        for k in np.flatnonzero(self._measured | (counts > 0)).tolist():
            if self._measured[k]:
                uses, table = arrays.measured(k)
            else:
                uses = in_order[starts[k] : starts[k] + counts[k]]
                table = self._table(k, uses)
            tabled.setdefault(table.shape, []).append((k, uses, table))
        for members in tabled.values():
            self._combinations(*(np.array(part) for part in zip(*members, strict=True)))
        self._sums(~self._measured & (counts == 0), sums, finite)

    def _told_apart(self, most: Floats, sums: list[Floats]) -> Ints:
        """Uses with variables for combinations: operands that matter, of kernels with few of
        them."""
        arrays, k, least = self.arrays, self.arrays.kernel, least_seconds(self.arrays)
        computed = ~self._measured & (np.maximum(*sums) > least)
        matters = computed[k] & (most > _MATTERS * np.maximum(least, sums[0])[k])
        few = np.bincount(k[matters], minlength=arrays.kernel_count) <= self.apart
        return np.flatnonzero(matters & few[k])

    def _table(self, kernel: int, uses: Ints) -> Floats:
        """Seconds of a kernel without measured table for all combinations of the places of
        ``uses``, by algorithm."""
        arrays = self.arrays
        fast = fast_in(2 ** len(uses))
        operands = np.maximum(
            np.where(fast, arrays.fast[uses], 0.0).sum(axis=1),
            np.where(fast, 0.0, arrays.slow[uses]).sum(axis=1),
        )
        seconds = arrays.seconds[
            arrays.first_algorithm[kernel] : arrays.first_algorithm[kernel + 1]
        ]
        table: Floats = np.maximum(seconds[:, None], operands)
        return table

    def _combinations(self, kernels: Ints, uses: Ints, tables: Floats) -> None:
        """Add a variable for every feasible combination of places and algorithm, linked to the
        operands' place variables.

        ``uses`` has shape (kernels, operands), ``tables`` (kernels, algorithms, combinations).
        """
        model, arrays, ones = self.model, self.arrays, np.ones(len(kernels))
        fast = fast_in(tables.shape[2])
        algorithms = arrays.first_algorithm[kernels, None] + np.arange(tables.shape[1])
        bytes_ = arrays.size[arrays.tensor[uses]] @ fast.T
        taken = arrays.workspace[algorithms][:, :, None] + bytes_[:, None]
        fits = taken <= arrays.limit[kernels, None, None]
        at, which, index = np.nonzero(np.isfinite(tables) & fits)
        seconds = tables[at, which, index]
        columns = model.columns(seconds / self.second)
        self._parts.append((kernels[at], columns, seconds))
        model.entries(model.rows(ones, 1.0)[at], columns, 1.0)
        for o, mine in enumerate(uses.T):
            # An operand's slow share is the sum of the combinations in which it is slow.
            rows = self._sum(tuple(part[mine] for part in self._fast), low=ones, high=1.0)
            self.tied[mine] = rows
            model.entries(rows[at], columns, 1.0 - fast[index, o])
        for a in range(tables.shape[1] if tables.shape[1] > 1 else 0):
            chosen = self.algorithm[algorithms[:, a]]
            model.entries(self._sum((chosen,), low=0.0)[at], columns, -1.0 * (which == a))

    def _sums(self, computed: Mask, sums: list[Floats], finite: Floats) -> None:
        """Add rows for the kernel time of arithmetic and of each memory, where they can bind."""
        arrays, model = self.arrays, self.model
        k, least = arrays.kernel, least_seconds(arrays)
        seconds = least[computed] / self.second
        self.time = _spread(computed, model.columns(np.ones(len(seconds)), seconds, np.inf))
        kernels = np.flatnonzero(computed)
        self._parts.append((kernels, self.time[kernels], np.full(len(kernels), self.second)))
        several = computed & (np.diff(arrays.first_algorithm) > 1)
        rows = self.least_rows
        fast, slow = (computed & (each > least) for each in sums)
        for part, matters in (1, fast), (2, slow), (0, several):
            constant = sums[1][matters] / self.second if part == 2 else 0.0
            rows[matters, part] = self._sum((self.time[matters],), low=constant, high=np.inf)
        for column in self._fast:
            model.entries(rows[k, 1], column, -arrays.fast / self.second)
            model.entries(rows[k, 2], column, finite / self.second)
        model.entries(rows[self._owner, 0], self.algorithm, -arrays.seconds / self.second)

    # --- copies that overlap kernels

    def _queue(self, link: CopyLink) -> None:
        """Add rows for bytes that wait to be copied out at every position: those that left the
        kernel before, less those copied."""
        arrays, model, kernels = self.arrays, self.model, self.arrays.kernel_count
        self.waiting = model.columns(
            np.zeros(kernels + 1), 0.0, np.append(np.full(kernels, np.inf), 0.0)
        )
        self.drained = model.columns(np.zeros(kernels), 0.0, np.inf)
        self.block_out = model.columns(
            np.full(kernels + 1, self._byte / link.to_slow / self.second), 0.0, np.inf
        )
        copied = (self.waiting, np.append(_NONE, self.drained), self.block_out)
        rows = self._sum(copied, (np.append(_NONE, self.waiting[:-1]),), low=0.0)
        # Those that leave were dirty after a use and do not stay dirty until the next one that
        # needs them.
        stays = np.flatnonzero((self.dirty != _NONE) & (self.before != _NONE))
        leaves = np.concatenate([self.before[stays], self._last])
        for column in self._dirty_after(leaves):
            model.entries(rows[arrays.kernel[leaves] + 1], column, -self._size[leaves])
        stay = np.concatenate([self.dirty[stays], self.tail[self._outputs]])
        model.entries(rows[arrays.kernel[leaves] + 1], stay, self._size[leaves])
        self._occupy(self.waiting[:-1])
        # Copies out that must be complete before the next use in the same step.
        needed = stays[(arrays.reads[stays] > 0) & ~self.is_first[stays]]
        needed = needed[arrays.last_write[self.before[needed]] >= 0]
        before, size = self.before[needed], self._size[needed]
        parts = [(column, size) for column in self._dirty_after(before)]
        self._leaving = _Copies(
            arrays.last_write[before],
            arrays.kernel[needed],
            [*parts, (self.dirty[needed], -size)],
            self.drained,
            self.block_out,
        )

    def _pool(self, link: CopyLink) -> None:
        """Add rows for the pool of bytes that were copied in and wait for their kernel."""
        arrays, model, kernels = self.arrays, self.model, self.arrays.kernel_count
        self.arrived, self.fetched, self.block_in = (
            model.columns(np.full(kernels, cost), 0.0, np.inf)
            for cost in (0.0, 0.0, self._byte / link.to_fast / self.second)
        )
        before = (np.append(_NONE, part[:-1]) for part in (self.arrived, self.fetched))
        rows = self._sum((self.arrived,), (*before, self.block_in), low=0.0)
        reads = np.flatnonzero(arrays.reads)
        model.entries(rows[arrays.kernel[reads]], self.arrives[reads], self._size[reads])
        after = reads[arrays.last_write_before[reads] >= 0]
        self._returning = _Copies(
            arrays.last_write_before[after],
            arrays.kernel[after],
            [(self.arrives[after], self._size[after])],
            self.fetched,
            self.block_in,
        )
        self._occupy(self.arrived)
        self._occupy(self.fetched)

    def _occupy(self, columns: Ints) -> None:
        """Count the bytes of ``columns`` as occupied while each kernel runs."""
        kernels = np.arange(len(columns))
        self._change(kernels, columns, 1.0)
        self._change(kernels + 1, columns, -1.0)

    def _engines(self, link: CopyLink) -> None:
        """Add rows that limit each engine's work to the time of a kernel and the stall after it."""
        model, kernels = self.model, self.arrays.kernel_count
        stalls = model.columns(np.ones(kernels), 0.0, np.inf)
        work = [
            (columns, self._byte / self.second / bandwidth)
            for columns, bandwidth in (
                (self.drained, link.asynchronous_to_slow),
                (self.fetched, link.asynchronous_to_fast),
            )
        ]
        self.engines = [
            model.rows(np.full(kernels, -np.inf), 0.0, (stalls, -1.0), *engine)
            for engine in ([work] if link.shared else [work[:1], work[1:]])
        ]
        for rows in self.engines:
            for at, columns, costs in self._parts:
                model.entries(rows[at], columns, -costs / self.second)

    def _limit_intervals(self, solved: Solved) -> int:
        """Add rows for violated intervals; return their number."""
        values, count = np.append(solved.values, 0.0), self.model.height
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
                row = self.model.rows(-np.inf, 0.0)
                within = np.flatnonzero((copies.begin >= begin) & (copies.end <= end))
                for column, share in copies.parts:
                    self.model.entries(row, column[within], share[within])
                for columns in (copies.moved[begin:end], copies.blocking[begin : end + 1]):
                    self.model.entries(row, columns, -1.0)
        return self.model.height - count

    # --- answers

    def solve(self, deadline: Deadline = NO_DEADLINE) -> Solved:
        """Solve the linear program; with overlapping copies, add rows for violated intervals until
        they gain little."""
        solved, poor = self.model.solve(deadline), 0
        for _ in range(_ROUNDS if self.link else 0):
            if solved.interrupted or not solved.optimal or not self._limit_intervals(solved):
                break
            better = self.model.solve(deadline)
            if not better.optimal:
                return replace(solved, interrupted=better.interrupted)
            solved, gained = better, better.objective - solved.objective
            poor = poor + 1 if gained < _GAIN * solved.objective else 0
            if poor == _PATIENCE:
                break
        return solved

    def prices(self, solved: Solved) -> Prices:
        """Return the multipliers of the rows as prices for :func:`.bound.lower_bound`."""
        arrays, duals = self.arrays, np.append(solved.row_duals, 0.0)
        memory = -solved.column_duals[self.occupied] - duals[self.room]
        engines = [
            np.clip(-duals[rows], 0.0, 1.0) for rows in (self.engines if self.link else [])
        ] or [np.zeros(arrays.kernel_count)]
        excess = np.maximum(sum(engines), 1.0)
        engines = [np.floor(engine / excess / _FINE) * _FINE for engine in engines]
        rest = np.maximum(1.0 - sum(engines), _FINE)[:, None]
        shares = np.clip(duals[self.least_rows] / rest, 0.0, 1.0)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
        shares[:, 0] = np.maximum(1.0 - shares[:, 1:].sum(axis=1), 0.0)
        return Prices(
            np.maximum(memory, 0.0) * self.second / self._byte,
            shares,
            duals[self.tied] * self.second,
            self.noted.astype(np.uint8),
            engines[0],
            engines[-1],
        )

    def shares(self, solved: Solved) -> Shares:
        """Return the shares of tensors in the fast memory in a solution."""
        value = np.append(solved.values, 0.0)
        gaps, tail = value[self.dirty] + value[self.clean], value[self.tail]
        cyclic = (self.arrays.live_range == LiveRange.CYCLIC) & (np.diff(self.arrays.first) > 0)
        tail[cyclic] = gaps[self.arrays.first[:-1][cyclic]]
        return Shares(value[self.arrives] + gaps, gaps, tail)

    @property
    def integers(self) -> Ints:
        """Return the columns that must be whole numbers."""
        columns = np.unique(np.concatenate([*self._fast, self.tail, self.algorithm]))
        whole: Ints = columns[columns != _NONE]
        return whole


def _spread(mask: Mask, columns: Ints) -> Ints:
    """Return columns at the places of a mask, _NONE elsewhere."""
    spread = np.full(len(mask), _NONE)
    spread[mask] = columns
    return spread


def broken_intervals(
    begin: Ints, end: Ints, bytes_: Floats, moved: Floats, blocking: Floats, most: int
) -> list[tuple[int, int]]:
    """Find violated intervals: fewer bytes are copied within them than the copies need whose
    windows lie within; the most violated first.

    An engine must move the bytes of all these copies within the interval. The rows are cutting
    planes for preemptive scheduling with release times and deadlines (Horn, 1974).

    ``moved`` are bytes that an engine moves while each kernel runs, ``blocking`` those copied at
    positions. O(kernels x longest interval).
    """
    positions, longest = len(moved) + 1, min(len(moved), _LONGEST)
    within = np.zeros((positions, longest + 1))
    short = end - begin <= longest
    np.add.at(within, (begin[short], (end - begin)[short]), bytes_[short])
    np.cumsum(within, axis=1, out=within)
    for first in range(positions - 2, -1, -1):
        within[first, 1:] += within[first + 1, :-1]
    starts = np.arange(positions)
    ends = np.minimum(starts[:, None] + np.arange(longest + 1), positions - 1)
    total = np.append(0.0, moved.cumsum())
    # There may be no copies at the last position.
    blocked = np.pad(blocking, (1, positions - len(blocking))).cumsum()
    missing = within - (
        total[ends] - total[starts, None] + blocked[ends + 1] - blocked[starts, None]
    )
    return _worst_intervals(missing, ends, most)


def _worst_intervals(missing: Floats, ends: Ints, most: int) -> list[tuple[int, int]]:
    """Return at most ``most`` intervals of kernels, first and last, with the largest entries of
    ``missing``, any two of them apart."""
    flat = missing.reshape(-1)
    worst = np.argpartition(-flat, min(_LOOKED_AT, len(flat) - 1))[:_LOOKED_AT]
    worst = worst[flat[worst] > _LEAST_MISSING]
    worst = worst[np.lexsort((worst, -flat[worst]))]
    found: list[tuple[int, int]] = []
    for row, column in zip(*np.unravel_index(worst, missing.shape), strict=True):
        interval = int(row), int(ends[row, column])
        if all(
            abs(interval[0] - other[0]) > _APART or abs(interval[1] - other[1]) > _APART
            for other in found
        ):
            found.append(interval)
            if len(found) == most:
                break
    return found
