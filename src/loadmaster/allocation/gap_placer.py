"""Placing buffers one after another, each into a gap among those placed before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import WHOLE_LIMIT, Ints

Choice = Callable[[Ints, Ints], int]
"""Picks one of several free gaps, given the lowest aligned offset and the room beyond it in
each."""


def lowest(start: Ints, room: Ints) -> int:
    """First gap that is wide enough."""
    return int(np.argmax(room >= 0))


def tightest(start: Ints, room: Ints) -> int:
    """Gap that leaves the least room (best fit)."""
    return int(np.argmin(np.where(room >= 0, room, WHOLE_LIMIT)))


def place(problem: Problem, order: Ints, *, best_fit: bool = False) -> Ints:
    """Place pinned buffers, then the others in ``order``, each at its lowest gap or in its
    tightest.

    In native code, in time that grows with n log n or with conflict pairs; with in-place pairs, in
    O(n) vectorised steps for each buffer.
    """
    if problem.conflicts is not None:
        return native.apart(problem, order, best_fit)
    if problem.features <= native.HONOURS:
        return native.in_order(problem, order, best_fit)
    return Placer(problem).run(order.tolist(), tightest if best_fit else lowest)


class Placer:
    """Parts placed so far, with their absolute addresses."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._parts = problem, problem.parts
        order = np.argsort(self._parts.owner, kind="stable")
        first = np.searchsorted(self._parts.owner[order], np.arange(len(problem) + 1))
        self._of = [order[first[i] : first[i + 1]] for i in range(len(problem))]
        self.offsets = np.full(len(problem), -1, dtype=np.int64)
        size = len(self._parts.owner)
        self._count = 0
        self._lower, self._upper, self._low, self._high = (
            np.zeros(size, dtype=np.int64) for _ in range(4)
        )

    def run(self, order: Iterable[int], choose: Choice) -> Ints:
        """Place everything."""
        problem = self._problem
        pinned = problem.pin >= 0
        for buffer in np.flatnonzero(pinned).tolist():
            self.put(buffer, int(problem.pin[buffer]))
        for buffer in order:
            if pinned[buffer]:
                continue
            self.put(buffer, self.find(buffer, choose))
        return self.offsets

    def put(self, buffer: int, offset: int) -> None:
        """Record a placement."""
        self.offsets[buffer] = offset
        mine = self._of[buffer]
        at = slice(self._count, self._count + len(mine))
        self._lower[at], self._upper[at] = self._parts.lower[mine], self._parts.upper[mine]
        self._low[at], self._high[at] = (
            self._parts.low[mine] + offset,
            self._parts.high[mine] + offset,
        )
        self._count += len(mine)

    def find(self, buffer: int, choose: Choice = lowest) -> int:
        """Offset of the gap that ``choose`` picks for a buffer."""
        above, below = self._forbidden(buffer)
        order = np.argsort(above, kind="stable")
        floor = np.concatenate([[0], np.maximum.accumulate(below[order])])
        align = int(self._problem.alignment[buffer])
        start = -(-np.maximum(floor, 0) // align) * align
        room = np.concatenate([above[order], [WHOLE_LIMIT]]) - start
        return int(start[choose(start, room)])

    def _forbidden(self, buffer: int) -> tuple[Ints, Ints]:
        """Open intervals of offsets at which a buffer would overlap something."""
        lower, upper = self._lower[: self._count], self._upper[: self._count]
        above, below = [], []
        for part in self._of[buffer].tolist():
            hit = (lower < self._parts.upper[part]) & (upper > self._parts.lower[part])
            above.append(self._low[: self._count][hit] - self._parts.high[part])
            below.append(self._high[: self._count][hit] - self._parts.low[part])
        return (
            (above[0], below[0])
            if len(above) == 1
            else (np.concatenate(above), np.concatenate(below))
        )
