"""Linear and integer programs, solved by HiGHS: minimise ``cost @ x`` subject to ``row_low <= A @ x
<= row_high`` and ``low <= x <= high``, with some of ``x`` whole.

Rows and columns may be added, and bounds changed, between solutions, which start from the previous
basis. The solver is not trusted: callers evaluate its answers in exact arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from loadmaster.core.arrays import Array, Floats, Int32s, Ints
from loadmaster.core.errors import package
from loadmaster.core.progress import NO_DEADLINE, Deadline, deferred_interrupts

Values = float | Array


@dataclass(frozen=True, eq=False)
class Solved:
    """The solver's answer: ``optimal`` and ``infeasible`` are its claims, ``values`` is empty if no
    solution was found, and duals are those of a minimisation.
    """

    optimal: bool
    infeasible: bool
    interrupted: bool
    objective: float
    values: Floats
    row_duals: Floats
    column_duals: Floats


class LinearProgram:
    """A linear or integer program that can be extended and solved again.

    Parameters
    ----------
    purpose
        What needs the solver, for the error if it is not installed.
    interruptible
        Whether Ctrl-C ends a solution, for larger programs.
    """

    def __init__(self, purpose: str, *, interruptible: bool = False) -> None:
        self._highspy = package("highspy", purpose)
        self._solver: Any = self._highspy.Highs()
        self._solver.silent()
        self._solver.HandleUserInterrupt = self._interruptible = interruptible
        # By default rows with entries of 1e15 and more are dropped.
        self._set(threads=1, random_seed=0, large_matrix_value=np.inf)
        self.width = self.height = 0
        """Columns and rows."""
        self._columns: list[tuple[Floats, ...]] = []
        self._rows: list[tuple[Floats, ...]] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []

    def columns(self, cost: Values, low: Values = 0.0, high: Values = 1.0) -> Ints:
        """Add columns and return their numbers."""
        self._columns.append(_alike(cost, low, high))
        first, self.width = self.width, self.width + len(self._columns[-1][0])
        return np.arange(first, self.width)

    def rows(
        self,
        low: Values,
        high: Values,
        *terms: tuple[Ints, Values],
    ) -> Ints:
        """Add rows and return their numbers; each term is a column and a factor for every row."""
        self._rows.append(_alike(low, high, *(columns for columns, _ in terms))[:2])
        first, self.height = self.height, self.height + len(self._rows[-1][0])
        rows = np.arange(first, self.height)
        for columns, values in terms:
            self.entries(rows, columns, values)
        return rows

    def entries(self, rows: Values, columns: Values, values: Values) -> None:
        """Add entries of new rows or columns; duplicates are summed, and entries with row or column
        -1 are ignored."""
        rows, columns, values = np.broadcast_arrays(np.atleast_1d(rows), columns, values)
        there = (rows >= 0) & (columns >= 0) & (values != 0)
        self._entries.append((rows[there], columns[there], values[there]))

    def bound_columns(self, columns: Ints, low: Values, high: Values) -> None:
        """Change the bounds of columns."""
        self._pass()
        _, low, high = _alike(columns, low, high)
        self._solver.changeColsBounds(len(low), _int32s(columns), low, high)

    def solve(
        self,
        deadline: Deadline = NO_DEADLINE,
        integers: Ints | None = None,
        gap: float = 0.0,
        nodes: int | None = None,
    ) -> Solved:
        """Solve until ``deadline``; with ``integers``, to a relative ``gap`` and with
        at most ``nodes`` branch-and-bound nodes."""
        self._pass()
        solver, kinds = self._solver, self._highspy.HighsVarType
        self._set(
            time_limit=solver.getRunTime() + deadline.left(), mip_rel_gap=gap, mip_abs_gap=1e-9
        )
        if nodes is not None:
            self._set(mip_max_nodes=nodes)
        whole = _int32s(np.empty(0) if integers is None else integers)

        def make(kind: Any) -> None:
            """Make the columns of ``integers`` whole or continuous."""
            solver.changeColsIntegrality(len(whole), whole, np.full(len(whole), kind))

        make(kinds.kInteger)
        interrupted = self._run()
        solution = solver.getSolution()
        info = solver.getInfo()
        status = solver.getModelStatus()
        make(kinds.kContinuous)
        states = self._highspy.HighsModelStatus
        found = info.primal_solution_status == 2
        return Solved(
            optimal=status == states.kOptimal,
            infeasible=status == states.kInfeasible,
            interrupted=interrupted,
            objective=float(info.objective_function_value),
            values=np.array(solution.col_value) if found else np.empty(0),
            row_duals=np.array(solution.row_dual),
            column_duals=np.array(solution.col_dual),
        )

    def infeasible_ray(self) -> Floats:
        """Multipliers of the rows that prove infeasibility; empty if not known."""
        return np.array(self._solver.getDualRay()[2])

    def _set(self, **options: Any) -> None:
        """Set options of the solver."""
        for name, value in options.items():
            self._solver.setOptionValue(name, value)

    def _pass(self) -> None:
        """Pass new columns with their entries in old rows to the solver, then new rows."""
        if not self._columns and not self._rows:
            return
        columns, rows = self._solver.getNumCol(), self._solver.getNumRow()
        parts = zip(*self._entries, strict=True) if self._entries else ((np.empty(0),),) * 3
        row, column, value = (np.concatenate(part) for part in parts)
        old = row < rows
        for add, first, new, (major, minor, values) in (
            (self._solver.addCols, columns, self._columns, (column[old], row[old], value[old])),
            (self._solver.addRows, rows, self._rows, (row[~old], column[~old], value[~old])),
        ):
            if new:
                bounds = [np.concatenate(part) for part in zip(*new, strict=True)]
                add(len(bounds[0]), *bounds, *_matrix(major - first, minor, values, len(bounds[0])))
            new.clear()
        self._entries.clear()

    def _run(self) -> bool:
        """Run the solver, in a thread if it is interruptible, because it ignores signals; return
        whether a signal ended it."""
        if not self._interruptible:
            self._solver.run()
            return False
        # An interrupt in the middle of these calls would leave their locks behind.
        with _ONE_AT_A_TIME, deferred_interrupts() as interrupts:
            self._solver.startSolve()
            while not self._solver.wait(0.05)[0]:
                if interrupts.requested:
                    self._solver.cancelSolve()
            return interrupts.requested


_ONE_AT_A_TIME = Lock()
"""HiGHS's package has one interrupt handle per process, and refuses a second running solver."""


def _alike(*values: Values) -> tuple[Floats, ...]:
    """Broadcast values to contiguous arrays of equal length."""
    return tuple(
        np.ascontiguousarray(each, dtype=np.float64)
        for each in np.broadcast_arrays(*map(np.atleast_1d, values))
    )


def _int32s(numbers: Floats | Ints) -> Int32s:
    """Return numbers as 32-bit integers."""
    return np.ascontiguousarray(numbers, dtype=np.int32)


def _matrix(
    major: Ints, minor: Ints, values: Floats, count: int
) -> tuple[int, Int32s, Int32s, Floats]:
    """Compressed matrix: number of entries, starts of majors, minors and values; duplicates are
    summed, because HiGHS may not terminate with duplicates."""
    order = np.lexsort((minor, major))
    major, minor, values = major[order], minor[order], values[order]
    fresh = np.ones(len(major), dtype=bool)
    fresh[1:] = (np.diff(major) != 0) | (np.diff(minor) != 0)
    begin = np.flatnonzero(fresh)
    sums = np.add.reduceat(values, begin) if len(begin) else values
    begin, sums = begin[sums != 0], sums[sums != 0]
    starts = np.searchsorted(major[begin], np.arange(count))
    return len(sums), _int32s(starts), _int32s(minor[begin]), sums
