"""AutoTM's integer program as published (ASPLOS 2020, section 4).

It has a binary for every edge of every tensor's flow network, a binary for every combination of
places of each kernel's operands, and for every kernel a row of all tensors that live while it runs.

Kept to check the sparse form against, and to show what that is worth: this one is slow. Kernels of
more than ten operands would need more than a thousand variables each and are refused.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from loadmaster.core.errors import PlacementError
from loadmaster.core.linear_program import LinearProgram, Solved
from loadmaster.placement.autotm.sequence_arrays import LiveRange, SequenceArrays
from loadmaster.placement.sequence import MOST_TABLED, KernelSequence

_START, _DIRTY, _CLEAN, _SLOW, _END = "start", "dirty", "clean", "slow", "end"
_Node = tuple[int, str]


class PublishedProgram:
    """The synchronous program of a sequence and its limits in the solver's hands."""

    def __init__(self, sequence: KernelSequence, arrays: SequenceArrays) -> None:
        self.sequence, self.arrays, self.model = sequence, arrays, LinearProgram("a test")
        self._memory: list[list[tuple[int, float]]] = [[] for _ in sequence.kernels]
        self._in_slow: dict[tuple[int, int], list[int]] = {}
        for t in range(arrays.tensor_count):
            self._network(t)
        self._kernels()

    def solve(self) -> Solved:
        """Solve to optimality; the objective is in seconds."""
        return self.model.solve(integers=np.arange(self.model.width))

    # --- one tensor
    # -----------------------------------------------------------------------------------------------------------------

    def _network(self, t: int) -> None:
        """Unit flow from before the first use to after the last: of weights it goes round."""
        arrays, tensor = self.arrays, self.sequence.tensors[t]
        begin, end = int(arrays.first[t]), int(arrays.first[t + 1])
        if begin == end:
            return
        live_range, into, out = (
            LiveRange(int(arrays.live_range[t])),
            tensor.bytes / self.sequence.link.to_fast,
            tensor.bytes / self.sequence.link.to_slow,
        )
        balance: dict[_Node, list[tuple[int, float]]] = {}

        def edge(source: _Node, target: _Node, cost: float, kernels: range = range(0)) -> int:
            (column,) = self.model.columns(np.array([cost])).tolist()
            balance.setdefault(source, []).append((column, -1.0))
            balance.setdefault(target, []).append((column, 1.0))
            for k in kernels:
                self._memory[k].append((column, float(arrays.size[t])))
            return int(column)

        for i, u in enumerate(range(begin, end)):
            before = i - 1 if i or live_range != LiveRange.CYCLIC else end - begin - 1
            k = int(arrays.kernel[u])
            gap = range(int(arrays.kernel[begin + before]) + 1 if before >= 0 else 0, k)
            if i == 0 and live_range == LiveRange.CYCLIC:
                gap = range(
                    int(arrays.kernel[end - 1]) + 1 - arrays.kernel_count, k
                )  # negative: at the end of the step before
            spots = [position % arrays.kernel_count for position in gap]
            reads, needed = (
                bool(arrays.reads[u]),
                bool(arrays.reads[u]) or (i == 0 and live_range == LiveRange.CYCLIC),
            )
            arriving = (2 * i, _SLOW)
            if before < 0:
                edge((-1, _START), arriving, 0.0)
                if live_range == LiveRange.INPUT:
                    edge((-1, _START), (2 * i, _DIRTY), 0.0, range(k))
            else:
                for state, leaving in (
                    (_DIRTY, out if needed else 0.0),
                    (_CLEAN, 0.0),
                    (_SLOW, 0.0),
                ):
                    edge((2 * before + 1, state), arriving, leaving)
                    if state != _SLOW:
                        stay = edge((2 * before + 1, state), (2 * i, state), 0.0)
                        for spot in spots:
                            self._memory[spot].append((stay, float(arrays.size[t])))
            edge(arriving, (2 * i, _CLEAN), into if reads else 0.0)
            at = range(k, k + 1)
            edge((2 * i, _DIRTY), (2 * i + 1, _DIRTY), 0.0, at)
            edge((2 * i, _CLEAN), (2 * i + 1, _DIRTY if arrays.writes[u] else _CLEAN), 0.0, at)
            self._in_slow[t, k] = [edge(arriving, (2 * i + 1, _SLOW), 0.0)]
        if live_range != LiveRange.CYCLIC:
            self._finish(edge, t, 2 * (end - begin) - 1, out)
        for node, entries in balance.items():
            supply = {_START: -1.0, _END: 1.0}.get(node[1], 0.0)
            self._row(entries, supply, supply)
        if live_range == LiveRange.CYCLIC:
            # What goes round is one tensor: at its first use it is somewhere.
            places = [
                c
                for s in (_DIRTY, _CLEAN, _SLOW)
                for c, sign in balance.get((1, s), [])
                if sign > 0
            ]
            self._row([(column, 1.0) for column in places], 1.0, 1.0)

    def _finish(self, edge: object, t: int, last: int, out: float) -> None:
        assert callable(edge)
        output, k = (
            self.arrays.live_range[t] == LiveRange.OUTPUT,
            int(self.arrays.kernel[self.arrays.first[t + 1] - 1]),
        )
        for state in (_DIRTY, _CLEAN, _SLOW):
            edge((last, state), (last, _END), out if output and state == _DIRTY else 0.0)
        if output:
            edge((last, _DIRTY), (last, _END), 0.0, range(k + 1, self.arrays.kernel_count))

    # --- kernels
    # --------------------------------------------------------------------------------------------------------------------

    def _kernels(self) -> None:
        for k, kernel in enumerate(self.sequence.kernels):
            operands = kernel.operands[: MOST_TABLED if kernel.measured is not None else None]
            if len(operands) > MOST_TABLED:
                raise PlacementError(
                    f"kernel {kernel.name!r} has {len(operands)} operands: the published program"
                    f" takes up to {MOST_TABLED}"
                )
            chosen: list[int] = []
            slow: list[list[int]] = [[] for _ in operands]
            for a, algorithm in enumerate(kernel.algorithms):
                for places in itertools.product((False, True), repeat=len(operands)):
                    rest = [False] * (len(kernel.operands) - len(operands))
                    seconds = kernel.seconds([*places, *rest], a)
                    if not math.isfinite(seconds):
                        continue
                    (column,) = self.model.columns(np.array([seconds])).tolist()
                    chosen.append(column)
                    self._memory[k].append((column, float(algorithm.workspace)))
                    for o, there in enumerate(places):
                        if there:
                            slow[o].append(column)
            self._row([(column, 1.0) for column in chosen], 1.0, 1.0)
            for operand, columns in zip(operands, slow, strict=True):
                places_ = [(column, 1.0) for column in self._in_slow[operand.tensor, k]]
                self._row(places_ + [(column, -1.0) for column in columns], 0.0, 0.0)
            self._row(self._memory[k], -math.inf, float(self.arrays.limit[k]))

    def _row(self, entries: list[tuple[int, float]], low: float, high: float) -> None:
        columns = np.array([column for column, _ in entries], dtype=np.int64)
        values = np.array([value for _, value in entries])
        self.model.entries(self.model.rows(low, high), columns, values)
