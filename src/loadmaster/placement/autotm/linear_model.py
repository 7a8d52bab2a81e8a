"""Linear and integer programs as arrays, solved by HiGHS in a way that Ctrl-C and deadlines can
stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from loadmaster.core.arrays import Floats, Int32s, Ints
from loadmaster.core.deadline import NO_DEADLINE, Deadline
from loadmaster.core.packages import package


@dataclass(frozen=True, eq=False)
class Solved:
    """The solver's answer, which is not trusted without a check.

    ``optimal`` and ``infeasible`` are its claims; ``values`` is empty if it found no point; duals
    are those of a minimisation.
    """

    optimal: bool
    infeasible: bool
    interrupted: bool
    objective: float
    values: Floats
    row_duals: Floats
    column_duals: Floats
    basis: Any = None
    """Where the solver ended, for a model that has got more rows since."""


class _Matrix(NamedTuple):
    """Entries column by column: where each column starts, rows, values."""

    starts: Int32s
    rows: Int32s
    values: Floats


@dataclass
class LinearModel:
    """Minimise cost times columns, each within bounds, rows within bounds. Entries with row or
    column -1 are left out."""

    _cost: list[Floats] = field(default_factory=list)
    _low: list[Floats] = field(default_factory=list)
    _high: list[Floats] = field(default_factory=list)
    _row_low: list[Floats] = field(default_factory=list)
    _row_high: list[Floats] = field(default_factory=list)
    _entries: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    _extra: list[tuple[Ints, Floats]] = field(default_factory=list)
    _fixed: list[tuple[Ints, float]] = field(default_factory=list)
    _made: tuple[tuple[int, int], _Matrix] | None = None
    _columns: int = 0
    _rows: int = 0

    @property
    def width(self) -> int:
        """Number of columns."""
        return self._columns

    def columns(self, cost: Floats, low: float | Floats = 0.0, high: float | Floats = 1.0) -> Ints:
        """Add columns and return their numbers."""
        count = len(cost)
        self._cost.append(np.asarray(cost, dtype=np.float64))
        self._low.append(np.broadcast_to(np.asarray(low, dtype=np.float64), (count,)))
        self._high.append(np.broadcast_to(np.asarray(high, dtype=np.float64), (count,)))
        self._columns += count
        return np.arange(self._columns - count, self._columns)

    def rows(self, low: Floats, high: Floats) -> Ints:
        """Add empty rows and return their numbers."""
        self._row_low.append(low)
        self._row_high.append(high)
        self._rows += len(low)
        return np.arange(self._rows - len(low), self._rows)

    def entries(self, rows: Ints, columns: Ints, values: Floats) -> None:
        """Add entries; those of the same row and column are summed."""
        there = (rows >= 0) & (columns >= 0) & (values != 0)
        self._entries.append((rows[there], columns[there], values[there]))

    def add_cost(self, columns: Ints, costs: Floats) -> None:
        """Add to the cost of columns."""
        there = columns >= 0
        self._extra.append((columns[there], costs[there]))

    def fix(self, columns: Ints, value: float) -> None:
        """Give columns the only value that they may have from now on."""
        self._fixed.append((columns, value))

    def release(self) -> None:
        """Take the last `fix` back."""
        self._fixed.pop()

    def solve(
        self,
        deadline: Deadline = NO_DEADLINE,
        integers: Ints | None = None,
        gap: float = 0.0,
        nodes: int | None = None,
        stop: Callable[[], bool] | None = None,
        method: str = "choose",
        after: Solved | None = None,
    ) -> Solved:
        """Run HiGHS, with ``integers`` whole to within ``gap``, until ``deadline`` or ``stop`` says
        so.

        ``after`` is the answer before the last rows were added, from which simplex goes on.
        """
        highspy = package("highspy", "strategy 'autotm'")

        solver: Any = highspy.Highs()
        solver.silent()
        options: list[tuple[str, Any]] = [
            ("threads", 1),
            ("random_seed", 0),
            ("mip_rel_gap", gap),
            ("mip_abs_gap", 1e-9),
            ("solver", method),
            ("time_limit", deadline.left()),
        ]
        if nodes is not None:
            options.append(("mip_max_nodes", nodes))
        for name, value in options:
            solver.setOptionValue(name, value)
        solver.passModel(self._model(highspy))
        if integers is not None and len(integers):
            kinds = np.full(len(integers), highspy.HighsVarType.kInteger)
            solver.changeColsIntegrality(len(integers), integers.astype(np.int32), kinds)
        if after is not None and after.basis is not None:
            more = self._rows - len(after.row_duals)
            after.basis.row_status = [
                *after.basis.row_status,
                *[highspy.HighsBasisStatus.kBasic] * more,
            ]
            solver.setBasis(after.basis)
        interrupted = _run(solver, stop)
        status, kinds = solver.getModelStatus(), highspy.HighsModelStatus
        solution, info = solver.getSolution(), solver.getInfo()
        found = info.primal_solution_status == 2
        return Solved(
            optimal=status == kinds.kOptimal,
            infeasible=status == kinds.kInfeasible,
            interrupted=interrupted,
            objective=float(info.objective_function_value),
            values=np.array(solution.col_value) if found else np.empty(0),
            row_duals=np.array(solution.row_dual),
            column_duals=np.array(solution.col_dual),
            basis=solver.getBasis(),
        )

    def _model(self, highspy: Any) -> Any:
        matrix = self._matrix()
        cost = np.concatenate(self._cost)
        for where, extra in self._extra:
            np.add.at(cost, where, extra)
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self._columns, self._rows
        low, high = np.concatenate(self._low), np.concatenate(self._high)
        for where, value in self._fixed:
            low[where] = high[where] = value
        model.col_cost_, model.col_lower_, model.col_upper_ = cost, low, high
        model.row_lower_, model.row_upper_ = (
            np.concatenate(self._row_low),
            np.concatenate(self._row_high),
        )
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = matrix
        return model

    def _matrix(self) -> _Matrix:
        """The entries by columns, sorted and summed; again only where columns or entries were
        added."""
        state = len(self._entries), self._columns
        if self._made is not None and self._made[0] == state:
            return self._made[1]
        rows, columns, values = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        order = np.lexsort((rows, columns))
        rows, columns, values = rows[order], columns[order], values[order]
        fresh = (
            np.append(True, (np.diff(rows) != 0) | (np.diff(columns) != 0))
            if len(rows)
            else np.empty(0, dtype=bool)
        )
        starts = np.flatnonzero(fresh)
        sums = np.add.reduceat(values, starts) if len(starts) else values
        starts, sums = starts[sums != 0], sums[sums != 0]
        first = np.searchsorted(columns[starts], np.arange(self._columns + 1)).astype(np.int32)
        matrix = _Matrix(first, rows[starts].astype(np.int32), sums)
        self._made = state, matrix
        return matrix


_ONE_AT_A_TIME = Lock()
"""All solvers of the process share what HiGHS's package tells a running one by: a second would be
refused while one runs."""


def _run(solver: Any, stop: Callable[[], bool] | None) -> bool:
    """Run in a thread of its own, because the solver hears no signals; says whether one, or
    ``stop``, ended it."""
    with _ONE_AT_A_TIME:
        return _run_alone(solver, stop)


def _run_alone(solver: Any, stop: Callable[[], bool] | None) -> bool:
    solver.HandleUserInterrupt = True
    solver.startSolve()
    interrupted = False
    while True:
        try:
            if solver.wait(0.05)[0]:
                return interrupted
            if stop is not None and not interrupted and stop():
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            interrupted = True
            solver.cancelSolve()
