"""The relaxation as an integer program: HiGHS proposes assignments and prices, and every bound is
evaluated in whole numbers.

A branch and bound of our own proves the optimum: its bounds trust the solver for nothing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.allocation.memories.problem import FORBIDDEN
from loadmaster.allocation.memories.relaxation import Multipliers, Relaxation
from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.packages import package

_MIP_NODES = 500
"""Nodes of branch and bound that HiGHS may visit in one solution."""


class Program:
    """One relaxation in the solver's hands. Variables are the allowed pairs of a buffer and a
    memory, in rows of the cost matrix."""

    def __init__(self, relaxation: Relaxation, seconds: float) -> None:
        highspy = package("highspy", "choosing a memory for every buffer")

        self._highspy = highspy
        self._relaxation = relaxation
        self._allowed = relaxation.cost != FORBIDDEN
        self._column = np.cumsum(self._allowed.reshape(-1)).reshape(self._allowed.shape) - 1
        self._scale = max(1.0, float(relaxation.cost.max(initial=1)))
        self._solver: Any = highspy.Highs()
        self._solver.silent()
        for name, value in (
            ("threads", 1),
            ("random_seed", 0),
            ("mip_rel_gap", 0.0),
            ("mip_max_nodes", _MIP_NODES),
        ):
            self._solver.setOptionValue(name, value)
        self._solver.setOptionValue("time_limit", seconds)
        self._build()

    def _build(self) -> None:
        relaxation, columns = self._relaxation, int(self._allowed.sum())
        buffer, bank = np.nonzero(self._allowed)
        self._pairs = buffer, bank
        rows: list[Ints] = [buffer]
        entries: list[Ints] = [np.arange(columns)]
        values: list[Floats] = [np.ones(columns)]
        lower, upper = [1.0] * len(relaxation.cost), [1.0] * len(relaxation.cost)
        count = len(relaxation.cost)
        for at in relaxation.limited:
            room = float(max(relaxation.room[at] or 0, 1))
            length = relaxation.last - relaxation.first
            mine = self._allowed[relaxation.owner, at] & (length > 0)
            parts = np.repeat(np.flatnonzero(mine), length[mine])
            starts = np.cumsum(length[mine]) - length[mine]
            instant = (
                np.arange(len(parts)) - np.repeat(starts, length[mine]) + relaxation.first[parts]
            )
            rows.append(count + instant)
            entries.append(self._column[relaxation.owner[parts], at])
            values.append(relaxation.bytes[parts, at] / room)
            lower += [-np.inf] * relaxation.instants
            upper += [(relaxation.room[at] or 0) / room] * relaxation.instants
            count += relaxation.instants
        for cut in relaxation.cuts:
            rows.append(np.full(len(cut.members), count))
            entries.append(self._column[cut.members, cut.bank])
            values.append(np.ones(len(cut.members)))
            lower.append(-np.inf)
            upper.append(float(cut.most))
            count += 1
        self._pass(
            columns,
            count,
            np.concatenate(rows),
            np.concatenate(entries),
            np.concatenate(values),
            lower,
            upper,
        )

    def _pass(
        self,
        columns: int,
        rows: int,
        row: Ints,
        column: Ints,
        value: Floats,
        lower: list[float],
        upper: list[float],
    ) -> None:
        highspy = self._highspy
        # A buffer of several windows takes a share of one instant with each of them; HiGHS may
        # never end where an entry is there twice.
        cell, at = np.unique(column.astype(np.int64) * rows + row, return_inverse=True)
        value = np.bincount(at, weights=value, minlength=len(cell)).astype(np.float64)
        column, row = np.divmod(cell, max(rows, 1))
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = columns, rows
        model.col_cost_ = self._relaxation.cost[self._allowed] / self._scale
        model.col_lower_, model.col_upper_ = np.zeros(columns), np.ones(columns)
        model.row_lower_, model.row_upper_ = np.array(lower), np.array(upper)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.searchsorted(column, np.arange(columns + 1)).astype(np.int32)
        model.a_matrix_.index_, model.a_matrix_.value_ = row.astype(np.int32), value
        self._solver.passModel(model)

    def linear(self, allowed: Mask) -> tuple[Multipliers, Floats | None]:
        """Prices of the linear program within ``allowed``, and its solution as a matrix; without
        one the prices say why."""
        solver, buffer = self._solver, len(self._relaxation.cost)
        columns = len(self._pairs[0])
        solver.changeColsBounds(
            columns,
            np.arange(columns, dtype=np.int32),
            np.zeros(columns),
            allowed[self._pairs].astype(np.float64),
        )
        solver.run()
        infeasible = solver.getModelStatus() == self._highspy.HighsModelStatus.kInfeasible
        if infeasible:
            ray = np.array(solver.getDualRay()[2])
            duals = -ray * self._scale if len(ray) else np.zeros(solver.getNumRow())
        else:
            duals = -np.array(solver.getSolution().row_dual)
        duals = np.maximum(duals[buffer:], 0.0) * self._scale
        prices = np.zeros((len(self._relaxation.room), self._relaxation.instants))
        for number, bank in enumerate(self._relaxation.limited):
            span = slice(
                number * self._relaxation.instants, (number + 1) * self._relaxation.instants
            )
            prices[bank] = duals[span] / max(self._relaxation.room[bank] or 0, 1)
        multipliers = Multipliers(
            prices, duals[len(self._relaxation.limited) * self._relaxation.instants :]
        )
        return multipliers, None if infeasible else self._matrix()

    def tighten(self, rounds: int = 10) -> None:
        """Add the cover inequalities that the linear program breaks, a few times over."""
        for _ in range(rounds):
            _, solution = self.linear(self._allowed)
            cuts = [] if solution is None else self._relaxation.covers(solution)
            if not cuts:
                return
            self._relaxation.cuts.extend(cuts)
            self._build()

    def integer(self) -> Ints | None:
        """The assignment that the solver likes best, to be checked; or None."""
        solver = self._solver
        columns = len(self._pairs[0])
        solver.changeColsBounds(
            columns, np.arange(columns, dtype=np.int32), np.zeros(columns), np.ones(columns)
        )
        kinds = self._highspy.HighsVarType
        solver.changeColsIntegrality(
            columns, np.arange(columns, dtype=np.int32), np.array([kinds.kInteger] * columns)
        )
        solver.run()
        found = bool(solver.getInfo().primal_solution_status == 2)
        chosen = self._matrix().argmax(axis=1) if found else None
        solver.changeColsIntegrality(
            columns, np.arange(columns, dtype=np.int32), np.array([kinds.kContinuous] * columns)
        )
        return chosen

    def _matrix(self) -> Floats:
        solution = np.full(self._allowed.shape, -1.0)
        solution[self._pairs] = np.array(self._solver.getSolution().col_value)
        return solution


@dataclass(frozen=True)
class Proof:
    """What a branch and bound has shown: a bound on the cost, and an assignment of the relaxation
    that costs less than was known."""

    bound: int
    better: Ints | None
    nodes: int


def prove(program: Program, relaxation: Relaxation, ceiling: int, nodes: int, step: int) -> Proof:
    """Look for an assignment that costs less than ``ceiling``, the lowest bound first; all costs
    are multiples of ``step``."""
    root = relaxation.cost != FORBIDDEN
    open_: list[tuple[int, int, Mask]] = [(0, 0, root)]
    made = 1
    for spent in range(nodes):
        if not open_ or open_[0][0] >= ceiling:
            return Proof(min(ceiling, open_[0][0] if open_ else ceiling), None, spent)
        known, _, allowed = heapq.heappop(open_)
        prices, solution = program.linear(allowed)
        bound = max(known, -(-relaxation.bound(prices, allowed) // step) * step)
        if bound >= ceiling:
            continue
        shares = np.where(allowed, np.zeros(allowed.shape) if solution is None else solution, -1.0)
        chosen = shares.argmax(axis=1)
        free = np.flatnonzero(allowed.sum(axis=1) > 1)
        if (
            (solution is not None or not len(free))
            and relaxation.holds(chosen)
            and relaxation.total(chosen) < ceiling
        ):
            return Proof(min([bound, *(node[0] for node in open_)]), chosen, spent + 1)
        if not len(free):
            continue
        doubt = 1.0 - shares[free].max(axis=1)
        weight = np.where(allowed[free], relaxation.cost[free], 0).max(axis=1) + 1.0
        buffer = int(free[np.argmax(np.where(doubt > 1e-6, doubt * weight, 1e-9 * weight))])
        for bank in (
            np.arange(allowed.shape[1]) == chosen[buffer],
            np.arange(allowed.shape[1]) != chosen[buffer],
        ):
            child = allowed.copy()
            child[buffer] &= bank
            if child[buffer].any():
                heapq.heappush(open_, (bound, made, child))
                made += 1
    return Proof(min([ceiling, *(node[0] for node in open_)]), None, nodes)
