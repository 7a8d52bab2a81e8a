"""AutoTM's integer program in a form that solves fast: few variables, few entries in each row.

It differs from the published one in three ways, and allows the same placements:

- A path needs three variables per use, not one per edge: whether the tensor arrives, or has stayed
  dirty, or has stayed clean. Leaving is what remains.
- Combinations of places are variables only for operands that matter to a kernel's time, and where
  there are few; else, as its time is a maximum of sums, three rows say so.
- The row for the memory at a kernel holds what changed since the kernel before it, and the
  occupancy of both, instead of every tensor that paths then: a tensor with a live range of a
  thousand kernels has a few entries, not a thousand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Bits, Floats, Ints, Mask
from loadmaster.placement.autotm.linear_model import LinearModel, Solved
from loadmaster.placement.autotm.sequence_arrays import (
    LiveRange,
    SequenceArrays,
    TensorPaths,
    least_seconds,
    least_workspace,
    placed_paths,
)

_NONE = -1
_MATTERS = 1e-3
"""Share of a kernel's time below which an operand's place does not enter its combinations."""
TOLD_APART = 4
"""The most operands of a kernel whose combinations of places are variables."""


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
        Seconds of each use's slow place in kernels whose combinations of places are variables,
        shape (uses,).
    noted
        Uses in such combinations whose kernel has no table, shape (uses,).
    """

    memory: Floats
    shares: Floats
    surcharge: Floats
    noted: Bits


def free_prices(arrays: SequenceArrays) -> Prices:
    """Make prices with which memory is free and kernels take as long as their arithmetic."""
    uses = len(arrays.kernel)
    return Prices(
        np.zeros(arrays.kernel_count),
        np.tile([1.0, 0.0, 0.0], (arrays.kernel_count, 1)),
        np.zeros(uses),
        np.zeros(uses, dtype=np.uint8),
    )


def use_costs(arrays: SequenceArrays, prices: Prices) -> tuple[Floats, Floats]:
    """Compute the cost in seconds of each use in the fast memory and in the slow one at these
    prices, shape (uses,) each."""
    shares = prices.shares[arrays.kernel]
    fast = arrays.fast * shares[:, 1]
    slow = np.where(np.isfinite(arrays.slow), arrays.slow, 0.0) * shares[:, 2]
    combined = (
        (np.diff(arrays.first_entry) > 0)
        | (np.bincount(arrays.kernel, prices.noted, arrays.kernel_count) > 0)
    )[arrays.kernel]
    fast[combined], slow[combined] = 0.0, prices.surcharge[combined]
    return fast, slow


class SparseProgram:
    """The integer program of one sequence and its limits.

    With ``moves`` false every tensor is placed once. ``limited`` are the kernels whose limits have
    rows, in order; all by default. Combinations of places are variables in computed kernels where
    at most ``apart`` operands matter.
    """

    def __init__(
        self,
        arrays: SequenceArrays,
        moves: bool,
        limited: Ints | None = None,
        apart: int = TOLD_APART,
    ) -> None:
        self.arrays, self.moves, self.apart = arrays, moves, apart
        several = np.flatnonzero(np.diff(arrays.first_algorithm) > 1)
        self.limited = (
            np.arange(arrays.kernel_count) if limited is None else np.union1d(limited, several)
        )
        self._changes: list[tuple[Ints, Ints, Floats]] = []
        self.model = LinearModel()
        self._second = max(float(least_seconds(arrays).mean()), 1e-12)
        self._byte = max(float(arrays.size.max(initial=1)), 1.0)
        self._measured = np.diff(arrays.first_entry) > 0
        self._paths()
        self._memory()
        self._kernels()

    # --- paths

    def _paths(self) -> None:
        if self.moves:
            self._moving()
        else:
            self._placed_once()
        must = ~np.isfinite(self.arrays.slow) & ~self._measured[self.arrays.kernel]
        at_most = np.where(must, 1.0, -np.inf)
        columns = np.stack([self.arrives, self.dirty, self.clean])
        rows = self.model.rows(at_most, np.ones(len(must)))
        for column in columns:
            self.model.entries(rows, column, np.ones(len(rows)))

    def _moving(self) -> None:
        arrays, model = self.arrays, self.model
        uses = np.arange(len(arrays.kernel))
        begins = arrays.first[:-1][np.diff(arrays.first) > 0]
        is_first = np.zeros(len(uses), dtype=bool)
        is_first[begins] = True
        before = np.full(len(uses), _NONE)
        follows = arrays.following != uses
        before[arrays.following[follows]] = uses[follows]
        cyclic = arrays.live_range[arrays.tensor] == LiveRange.CYCLIC
        before[is_first & cyclic] = arrays.first[arrays.tensor[is_first & cyclic] + 1] - 1
        self.before, self.is_first = before, is_first
        reads, writes = arrays.reads > 0, arrays.writes > 0
        supplied = is_first & (arrays.live_range[arrays.tensor] == LiveRange.INPUT)
        soiled = np.zeros(arrays.tensor_count, dtype=bool)
        soiled[arrays.tensor[writes]] = True
        soiled |= arrays.live_range == LiveRange.INPUT
        has_before = before != _NONE
        dirty = (reads | (is_first & cyclic)) & soiled[arrays.tensor] & (has_before | supplied)
        clean = reads & has_before & ~writes[np.maximum(before, 0)]
        copy_in = np.where(reads, arrays.to_fast[arrays.tensor], 0.0) / self._second
        copy_out = arrays.to_slow[arrays.tensor] / self._second
        self.arrives = model.columns(copy_in)
        self.dirty = _scattered(dirty, model.columns(np.where(supplied, 0.0, -copy_out)[dirty]))
        self.clean = _scattered(clean, model.columns(np.zeros(int(clean.sum()))))
        outputs = np.flatnonzero(
            (arrays.live_range == LiveRange.OUTPUT) & (np.diff(arrays.first) > 0)
        )
        self.tail = np.full(arrays.tensor_count, _NONE)
        self.tail[outputs] = model.columns(-arrays.to_slow[outputs] / self._second)
        last = arrays.first[outputs + 1] - 1
        # Leaving dirty costs a copy: paid for being dirty, given back for staying.
        pays = np.concatenate([before[dirty & ~supplied], last])
        for column in self._dirty_after(pays):
            model.add_cost(column, copy_out[pays])
        stays = dirty & ~supplied
        self._at_most(self.dirty[stays], self._dirty_after(before[stays]))
        self._at_most(self.tail[outputs], self._dirty_after(last))
        self._at_most(self.clean[clean], [self.clean[before[clean]], self.arrives[before[clean]]])

    def _dirty_after(self, uses: Ints) -> list[Ints]:
        """Columns that sum to whether the tensor is dirty after each of ``uses``."""
        writes = self.arrays.writes[uses] > 0
        return [
            self.dirty[uses],
            np.where(writes, self.clean[uses], _NONE),
            np.where(writes, self.arrives[uses], _NONE),
        ]

    def _at_most(self, columns: Ints, sums: list[Ints]) -> None:
        rows = self.model.rows(np.full(len(columns), -np.inf), np.zeros(len(columns)))
        self.model.entries(rows, columns, np.ones(len(rows)))
        for column in sums:
            self.model.entries(rows, column, np.full(len(rows), -1.0))

    def _placed_once(self) -> None:
        arrays = self.arrays
        chosen = self.model.columns(np.zeros(arrays.tensor_count))
        self.arrives = chosen[arrays.tensor]
        self.dirty = np.full(len(arrays.kernel), _NONE)
        self.clean, self.tail = (
            self.dirty,
            np.where(arrays.live_range == LiveRange.OUTPUT, chosen, _NONE),
        )

    # --- memory

    def _memory(self) -> None:
        arrays, model, at = self.arrays, self.model, self.limited
        several = np.diff(arrays.first_algorithm) > 1
        free = (arrays.limit - np.where(several, 0, least_workspace(arrays)))[at] / self._byte
        self.occupied = model.columns(np.zeros(len(at)), 0.0, free)
        self.changes = model.rows(np.zeros(len(at)), np.zeros(len(at)))
        model.entries(self.changes, self.occupied, np.ones(len(at)))
        model.entries(self.changes[1:], self.occupied[:-1], np.full(max(len(at) - 1, 0), -1.0))
        if self.moves:
            self._changes_of_moving()
        else:
            self._changes_of_placed()
        self._algorithms(np.flatnonzero(several))

    def _changes_of_moving(self) -> None:
        arrays = self.arrays
        size = arrays.size[arrays.tensor] / self._byte
        uses = np.arange(len(arrays.kernel))
        self._change(arrays.kernel, self.arrives, size)
        columns = (self.arrives, self.dirty, self.clean)
        for column in columns:
            self._change(arrays.kernel + 1, column, -size)
        follows = np.flatnonzero(self.before != _NONE)
        for column in (self.dirty, self.clean):
            # Stays from the use before: there from its end on; round the end of time, from the
            # start too.
            self._change(arrays.kernel[self.before[follows]] + 1, column[follows], size[follows])
            around = uses[self.is_first & (arrays.live_range[arrays.tensor] != LiveRange.INNER)]
            self._change(np.zeros(len(around), dtype=np.int64), column[around], size[around])
        ends = np.flatnonzero(self.tail != _NONE)
        self._change(
            arrays.kernel[arrays.first[ends + 1] - 1] + 1,
            self.tail[ends],
            arrays.size[ends] / self._byte,
        )

    def _changes_of_placed(self) -> None:
        arrays = self.arrays
        used = np.flatnonzero(np.diff(arrays.first) > 0)
        live_range, size, column = (
            arrays.live_range[used],
            arrays.size[used] / self._byte,
            self.arrives[arrays.first[used]],
        )
        start = np.where(
            (live_range == LiveRange.CYCLIC) | (live_range == LiveRange.INPUT),
            0,
            arrays.kernel[arrays.first[used]],
        )
        end = np.where(
            (live_range == LiveRange.CYCLIC) | (live_range == LiveRange.OUTPUT),
            arrays.kernel_count,
            arrays.kernel[arrays.first[used + 1] - 1] + 1,
        )
        self._change(start, column, size)
        self._change(end, column, -size)

    def _change(self, kernels: Ints, columns: Ints, sizes: Floats) -> None:
        """Add bytes that enter or leave at kernels to the next row with a limit."""
        there = columns != _NONE
        self._changes.append((kernels[there], columns[there], sizes[there]))
        seen = np.searchsorted(self.limited, kernels)
        inside = seen < len(self.limited)
        self.model.entries(self.changes[seen[inside]], columns[inside], -sizes[inside])

    def _algorithms(self, several: Ints) -> None:
        """Add a variable for each algorithm of kernels that have several."""
        arrays, model = self.arrays, self.model
        owner = np.repeat(np.arange(arrays.kernel_count), np.diff(arrays.first_algorithm))
        chosen = np.flatnonzero(np.isin(owner, several))
        self.algorithm = np.full(len(owner), _NONE)
        self.algorithm[chosen] = model.columns(np.zeros(len(chosen)))
        one = np.full(arrays.kernel_count, _NONE)
        one[several] = model.rows(np.ones(len(several)), np.ones(len(several)))
        model.entries(one[owner[chosen]], self.algorithm[chosen], np.ones(len(chosen)))
        self.room = np.full(arrays.kernel_count, _NONE)
        self.room[several] = model.rows(
            np.full(len(several), -np.inf), arrays.limit[several] / self._byte
        )
        model.entries(
            self.room[several],
            self.occupied[np.searchsorted(self.limited, several)],
            np.ones(len(several)),
        )
        model.entries(
            self.room[owner[chosen]], self.algorithm[chosen], arrays.workspace[chosen] / self._byte
        )

    # --- kernels

    def _kernels(self) -> None:
        arrays = self.arrays
        self.time = np.full(arrays.kernel_count, _NONE)
        self.by_fast, self.by_slow, self.by_arithmetic = (
            np.full(arrays.kernel_count, _NONE) for _ in range(3)
        )
        self.tied = np.full(len(arrays.kernel), _NONE)
        self.noted = np.zeros(len(arrays.kernel), dtype=bool)
        algorithms = np.diff(arrays.first_algorithm)
        told = self._told_apart()
        groups: dict[tuple[int, int], list[tuple[int, Ints, Floats]]] = {}
        for k in np.flatnonzero(self._measured).tolist():
            table = arrays.table[arrays.first_entry[k] : arrays.first_entry[k + 1]]
            operands = (len(table) // int(algorithms[k])).bit_length() - 1
            uses = arrays.use[arrays.first_operand[k] : arrays.first_operand[k] + operands]
            groups.setdefault((operands, int(algorithms[k])), []).append((k, uses, table))
        for (_, count), members in groups.items():
            kernels, uses, tables = (np.array(part) for part in zip(*members, strict=True))
            self._combinations(kernels, uses, tables.reshape(len(kernels), count, -1))
        by_kernel = np.argsort(arrays.kernel[told], kind="stable")
        noted = told[by_kernel]
        self.noted[noted] = True
        counts = np.bincount(arrays.kernel[noted], minlength=arrays.kernel_count)
        starts = np.concatenate([[0], np.cumsum(counts)])
        for operands in range(1, self.apart + 1):
            for count in np.unique(algorithms).tolist():
                kernels = np.flatnonzero((counts == operands) & (algorithms == count))
                uses = noted[starts[kernels][:, None] + np.arange(operands)]
                self._combinations(kernels, uses, self._tables(kernels, uses, count))
        self._sums(~self._measured & (counts == 0))

    def _told_apart(self) -> Ints:
        """Uses whose combinations are variables: those that matter, of computed kernels that have
        few."""
        arrays, k = self.arrays, self.arrays.kernel
        finite = np.where(np.isfinite(arrays.slow), arrays.slow, 0.0)
        fast_sum, slow_sum = (
            np.bincount(k, arrays.fast, arrays.kernel_count),
            np.bincount(k, finite, arrays.kernel_count),
        )
        least = least_seconds(arrays)
        computed = ~self._measured & (np.maximum(fast_sum, slow_sum) > least)
        matters = computed[k] & (
            np.maximum(arrays.fast, finite) > _MATTERS * np.maximum(least, fast_sum)[k]
        )
        few = np.bincount(k[matters], minlength=arrays.kernel_count) <= self.apart
        return np.flatnonzero(matters & few[k])

    def _tables(self, kernels: Ints, uses: Ints, algorithms: int) -> Floats:
        """Seconds of computed kernels for all combinations of the places of ``uses``; shape
        (kernels, algorithms, combinations)."""
        arrays = self.arrays
        bits = (np.arange(2 ** uses.shape[1])[:, None] >> np.arange(uses.shape[1])) & 1
        fast = arrays.fast[uses] @ (1 - bits).T
        with np.errstate(invalid="ignore"):
            slow = np.where(bits[None], arrays.slow[uses][:, None], 0.0).sum(axis=2)
        arithmetic = arrays.seconds[
            arrays.first_algorithm[kernels][:, None] + np.arange(algorithms)
        ]
        tables: Floats = np.maximum(arithmetic[:, :, None], np.maximum(fast, slow)[:, None, :])
        return tables

    def _combinations(self, kernels: Ints, uses: Ints, tables: Floats) -> None:
        """One variable for every possible combination of places and algorithms, tied to the places
        of the operands.

        ``uses`` has shape (kernels, operands), ``tables`` (kernels, algorithms, combinations).
        """
        model = self.model
        at, which, index = np.nonzero(np.isfinite(tables))
        columns = model.columns(tables[at, which, index] / self._second)
        one = model.rows(np.ones(len(kernels)), np.ones(len(kernels)))
        model.entries(one[at], columns, np.ones(len(columns)))
        for o in range(uses.shape[1]):
            # In the slow memory in as much as the chosen combinations say so.
            rows = model.rows(np.ones(len(kernels)), np.ones(len(kernels)))
            self.tied[uses[:, o]] = rows
            for column in (self.arrives, self.dirty, self.clean):
                model.entries(rows, column[uses[:, o]], np.ones(len(rows)))
            slow = (index >> o) & 1 == 1
            model.entries(rows[at[slow]], columns[slow], np.ones(int(slow.sum())))
        for a in range(tables.shape[1] if tables.shape[1] > 1 else 0):
            rows = model.rows(np.zeros(len(kernels)), np.zeros(len(kernels)))
            model.entries(
                rows,
                self.algorithm[self.arrays.first_algorithm[kernels] + a],
                np.ones(len(kernels)),
            )
            model.entries(
                rows[at[which == a]], columns[which == a], np.full(int((which == a).sum()), -1.0)
            )

    def _sums(self, computed: Mask) -> None:
        """Time is at least the arithmetic's and each memory's: rows only where they can matter."""
        arrays, model, k = self.arrays, self.model, self.arrays.kernel
        least = least_seconds(arrays)
        finite = np.where(np.isfinite(arrays.slow), arrays.slow, 0.0)
        fast_sum, slow_sum = (
            np.bincount(k, arrays.fast, arrays.kernel_count),
            np.bincount(k, finite, arrays.kernel_count),
        )
        self.time[computed] = model.columns(
            np.ones(int(computed.sum())), least[computed] / self._second, np.inf
        )
        for rows, sums, sign, costs in (
            (self.by_fast, fast_sum, -1.0, arrays.fast),
            (self.by_slow, slow_sum, 1.0, finite),
        ):
            matters = computed & (sums > least)
            constant = sums[matters] / self._second if sign > 0 else np.zeros(int(matters.sum()))
            rows[matters] = model.rows(constant, np.full(int(matters.sum()), np.inf))
            model.entries(rows[matters], self.time[matters], np.ones(int(matters.sum())))
            uses = matters[k]
            for column in (self.arrives, self.dirty, self.clean):
                model.entries(rows[k[uses]], column[uses], sign * costs[uses] / self._second)
        chooses = computed & (np.diff(arrays.first_algorithm) > 1)
        self.by_arithmetic[chooses] = model.rows(
            np.zeros(int(chooses.sum())), np.full(int(chooses.sum()), np.inf)
        )
        model.entries(self.by_arithmetic[chooses], self.time[chooses], np.ones(int(chooses.sum())))
        owner = np.repeat(np.arange(arrays.kernel_count), np.diff(arrays.first_algorithm))
        timed = chooses[owner]
        model.entries(
            self.by_arithmetic[owner[timed]],
            self.algorithm[timed],
            -arrays.seconds[timed] / self._second,
        )

    # --- answers

    def prices(self, solved: Solved) -> Prices:
        """Return the rows' multipliers as prices; all prices give a valid bound, these a good
        one."""
        arrays = self.arrays
        memory = np.zeros(arrays.kernel_count)
        memory[self.limited] = -solved.column_duals[self.occupied]
        several = self.room != _NONE
        memory[several] -= solved.row_duals[self.room[several]]
        shares = np.zeros((arrays.kernel_count, 3))
        for at, rows in ((0, self.by_arithmetic), (1, self.by_fast), (2, self.by_slow)):
            there = rows != _NONE
            shares[there, at] = np.clip(solved.row_duals[rows[there]], 0.0, 1.0)
        total = shares.sum(axis=1, keepdims=True)
        shares /= np.maximum(total, 1.0)
        shares[:, 0] += 1.0 - shares.sum(axis=1)
        surcharge = np.zeros(len(arrays.kernel))
        tied = self.tied != _NONE
        surcharge[tied] = solved.row_duals[self.tied[tied]] * self._second
        return Prices(
            np.maximum(memory, 0.0) * self._second / self._byte,
            shares,
            surcharge,
            self.noted.astype(np.uint8),
        )

    def excess(self, solved: Solved) -> Floats:
        """Return the bytes by which a solution exceeds the limit at each kernel, shape (kernels,);
        negative where there is room."""
        arrays = self.arrays
        change = np.zeros(arrays.kernel_count + 1)
        for kernels, columns, sizes in self._changes:
            np.add.at(change, kernels, sizes * solved.values[columns])
        return change.cumsum()[:-1] * self._byte - (arrays.limit - least_workspace(arrays))

    def shares(self, solved: Solved) -> tuple[Floats, Floats, Floats]:
        """Return the share of each tensor in the fast memory at its uses, in the gaps before them,
        and at the end; as in `TensorPaths`."""
        value = np.append(solved.values, 0.0)
        stays = value[self.dirty] + value[self.clean]
        tail = value[self.tail]
        cyclic = (self.arrays.live_range == LiveRange.CYCLIC) & (np.diff(self.arrays.first) > 0)
        tail[cyclic] = stays[self.arrays.first[:-1][cyclic]]
        return value[self.arrives] + stays, stays, tail

    def paths(self, solved: Solved) -> tuple[TensorPaths, Floats]:
        """Round a solution to paths; also return each tensor's distance from whole numbers."""
        arrays = self.arrays
        value = np.append(solved.values, 0.0)
        arrives, dirty, clean, tail = (
            value[column] for column in (self.arrives, self.dirty, self.clean, self.tail)
        )
        doubt = np.zeros(arrays.tensor_count)
        for part in (arrives, dirty, clean):
            np.maximum.at(doubt, arrays.tensor, np.abs(part - np.rint(part)))
        doubt = np.maximum(doubt, np.abs(tail - np.rint(tail)))
        if not self.moves:
            return placed_paths(arrays, value[self.arrives] > 0.5), doubt
        stays = dirty + clean > 0.5
        ends = tail > 0.5
        cyclic = (arrays.live_range == LiveRange.CYCLIC) & (np.diff(arrays.first) > 0)
        ends[cyclic] = stays[arrays.first[:-1][cyclic]]
        fast = arrives + dirty + clean > 0.5
        return (
            TensorPaths(fast.astype(np.uint8), stays.astype(np.uint8), ends.astype(np.uint8)),
            doubt,
        )

    @property
    def integers(self) -> Ints:
        """Return the columns that must be whole numbers."""
        kinds = [self.arrives, self.dirty, self.clean, self.tail, self.algorithm]
        columns: Ints = np.unique(np.concatenate(kinds))
        whole: Ints = columns[columns != _NONE]
        return whole

    @property
    def second(self) -> float:
        """Seconds that a unit of the objective stands for."""
        return self._second


def _scattered(mask: Mask, columns: Ints) -> Ints:
    spread = np.full(len(mask), _NONE)
    spread[mask] = columns
    return spread
