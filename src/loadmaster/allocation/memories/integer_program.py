"""The relaxation as an integer program: HiGHS proposes assignments and prices, and every bound is
evaluated in whole numbers.

A branch and bound of our own proves the optimum: its bounds trust the solver for nothing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from loadmaster.allocation.memories.problem import FORBIDDEN
from loadmaster.allocation.memories.relaxation import CoverCut, Multipliers, Relaxation
from loadmaster.core.arrays import Floats, Ints, Mask, ranges
from loadmaster.core.linear_program import LinearProgram, Solved
from loadmaster.core.progress import Deadline


class AssignmentProgram:
    """The integer program of a relaxation: minimise the cost of all buffers, each in one memory,
    such that no limited memory exceeds its capacity at any instant, and no cut is violated.

    Columns are the allowed pairs of a buffer and a memory, in rows of the cost matrix.
    """

    def __init__(self, relaxation: Relaxation, seconds: float) -> None:
        self._relaxation, self._deadline = relaxation, Deadline.within(seconds)
        self._scale = max(1.0, float(relaxation.cost.max(initial=1)))
        allowed = relaxation.cost != FORBIDDEN
        self._pairs = np.nonzero(allowed)
        self._program = LinearProgram("choosing a memory for every buffer")
        columns = self._program.columns(relaxation.cost[allowed] / self._scale)
        self._column = np.full(allowed.shape, -1)
        self._column[allowed] = columns
        self._program.rows(np.ones(len(relaxation.cost)), 1.0)
        self._program.entries(self._pairs[0], columns, 1.0)
        length = relaxation.last - relaxation.first
        parts = np.repeat(np.arange(len(length)), length)
        instant = ranges(relaxation.first, length)
        for at, size in relaxation.room.items():
            room = float(max(size, 1))
            limits = np.full(relaxation.instants, size / room)
            self._program.entries(
                self._program.rows(-np.inf, limits)[instant],
                self._column[relaxation.owner[parts], at],
                relaxation.bytes[parts, at] / room,
            )
        self._add_cuts(relaxation.cuts)

    def _add_cuts(self, cuts: list[CoverCut]) -> None:
        """Add a row for each cut: at most ``most`` of its buffers in its memory."""
        for cut in cuts:
            row = self._program.rows(-np.inf, float(cut.most))
            self._program.entries(row, self._column[cut.members, cut.bank], 1.0)

    def linear(self, allowed: Mask) -> tuple[Multipliers, Floats | None]:
        """Solve the linear program within ``allowed``: return prices, and the solution as a matrix.
        If it is infeasible, the solution is None and the prices prove it."""
        program, relaxation = self._program, self._relaxation
        program.bound_columns(self._column[self._pairs], 0.0, allowed[self._pairs])
        solved = program.solve(self._deadline)
        duals = -(program.infeasible_ray() if solved.infeasible else solved.row_duals)
        duals = np.maximum(np.resize(duals, program.height), 0.0)[len(relaxation.cost) :]
        duals *= self._scale
        prices = np.zeros((relaxation.cost.shape[1], relaxation.instants))
        covers = len(relaxation.room) * relaxation.instants
        room = np.maximum(list(relaxation.room.values()), 1)[:, None]
        prices[list(relaxation.room)] = duals[:covers].reshape(-1, relaxation.instants) / room
        multipliers = Multipliers(prices, duals[covers:])
        return multipliers, None if solved.infeasible else self._matrix(solved)

    def tighten(self, rounds: int = 10) -> None:
        """Add cover inequalities that the linear program violates, for a few rounds."""
        for _ in range(rounds):
            _, solution = self.linear(self._relaxation.cost != FORBIDDEN)
            cuts = [] if solution is None else self._relaxation.covers(solution)
            if not cuts:
                return
            self._relaxation.cuts.extend(cuts)
            self._add_cuts(cuts)

    def integer(self, nodes: int) -> Ints | None:
        """Solve the integer program within ``nodes`` of HiGHS's branch and bound; return its
        assignment, which has to be checked, or None."""
        columns = self._column[self._pairs]
        self._program.bound_columns(columns, 0.0, 1.0)
        solved = self._program.solve(self._deadline, columns, nodes=nodes)
        return self._matrix(solved).argmax(axis=1) if len(solved.values) else None

    def _matrix(self, solved: Solved) -> Floats:
        """Return the values by buffer and memory, -1 where a buffer may not be."""
        solution = np.full(self._column.shape, -1.0)
        solution[self._pairs] = np.resize(solved.values, len(self._pairs[0]))
        return solution


@dataclass(frozen=True)
class Proof:
    """The result of branch and bound: a lower bound of the cost, and an assignment that improves on
    the known cost, if one was found."""

    bound: int
    better: Ints | None
    nodes: int


def prove(program: AssignmentProgram, relaxation: Relaxation, ceiling: int, nodes: int) -> Proof:
    """Search for an assignment that costs less than ``ceiling``, by best-first branch and bound."""
    root = relaxation.cost != FORBIDDEN
    # All costs are multiples of this.
    step = max(1, int(np.gcd.reduce(relaxation.cost[root])))
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
        shares = np.where(allowed, 0.0 if solution is None else solution, -1.0)
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
        fractionality = 1.0 - shares[free].max(axis=1)
        weight = np.where(allowed[free], relaxation.cost[free], 0).max(axis=1) + 1.0
        buffer = int(
            free[np.argmax(np.where(fractionality > 1e-6, fractionality * weight, 1e-9 * weight))]
        )
        here = np.arange(allowed.shape[1]) == chosen[buffer]
        for some in (here, ~here):
            child = allowed.copy()
            child[buffer] &= some
            if child[buffer].any():
                heapq.heappush(open_, (bound, made, child))
                made += 1
    return Proof(min([ceiling, *(node[0] for node in open_)]), None, nodes)
