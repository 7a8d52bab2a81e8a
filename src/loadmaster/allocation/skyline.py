"""The propagator under `telamalloc`: a skyline per time interval, and who is to blame when something no longer fits under the capacity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.buffers import Ints, Problem


@dataclass(frozen=True)
class Conflict:
    """A dead end: levels of the placements that cause it, and the buffer that found no place, if it is a single one."""

    levels: set[int]
    victim: int | None


class Skyline:
    """Placements so far. Time is cut into sections with constant live sets; nothing is placed below the skyline of a section."""

    def __init__(self, problem: Problem, capacity: int) -> None:
        self._problem, self._capacity = problem, capacity
        parts = problem.parts
        times = np.unique(np.concatenate([parts.lower, parts.upper]))
        self._live = np.zeros((len(problem), max(len(times) - 1, 1)), dtype=bool)
        first, last = np.searchsorted(times, parts.lower), np.searchsorted(times, parts.upper)
        for owner, begin, end in zip(parts.owner.tolist(), first.tolist(), last.tolist(), strict=True):
            self._live[owner, begin:end] = True
        self._sections = [np.flatnonzero(row) for row in self._live]
        self._sky = np.zeros(self._live.shape[1], dtype=np.int64)
        pinned = problem.pin >= 0
        self._pins = np.flatnonzero(pinned)[np.argsort(problem.pin[pinned], kind="stable")].tolist()
        self._waiting = self._live[~pinned].T @ problem.size[~pinned] if len(problem) else self._sky.copy()
        self._level = np.full(len(problem), -1, dtype=np.int64)
        self._undo: list[Ints] = []
        self.placed: list[int] = []
        self.free = int((~pinned).sum())
        self.offsets = problem.pin.copy()

    def waiting_mask(self) -> NDArray[np.bool_]:
        """Which buffers are still to be placed."""
        return self.offsets < 0

    def is_placed(self, buffer: int) -> bool:
        """Whether a buffer has an address."""
        return bool(self.offsets[buffer] >= 0)

    def covers(self, buffer: int, section: int) -> bool:
        """Whether a buffer is alive in a section."""
        return bool(self._live[buffer, section])

    def alive(self, section: int) -> list[int]:
        """Buffers alive in a section."""
        found: list[int] = np.flatnonzero(self._live[:, section]).tolist()
        return found

    def fullest(self, among: NDArray[np.bool_], earliest: bool = False) -> int:
        """Section with the most bytes of some buffers; or the first that has any."""
        index = np.flatnonzero(among)
        load = self._problem.size[index] @ self._live[index]
        return int(np.argmax(load > 0 if earliest else load))

    def blocked(self) -> bool:
        """Whether pins alone end above the capacity."""
        return any(int(self._problem.pin[b] + self._problem.size[b]) > self._capacity for b in self._pins)

    def lowest(self, buffer: int) -> int:
        """Lowest aligned address above the skyline that no pinned buffer is in the way of."""
        align, size = int(self._problem.alignment[buffer]), int(self._problem.size[buffer])
        at = -(-int(self._sky[self._sections[buffer]].max()) // align) * align
        for pin in self._pins:
            low, high = int(self._problem.pin[pin]), int(self._problem.pin[pin] + self._problem.size[pin])
            if low < at + size and at < high and (self._live[pin] & self._live[buffer]).any():
                at = -(-high // align) * align
        return at

    def place(self, buffer: int, propagate: bool) -> Conflict | None:
        """Place a buffer; if that leads to a conflict, take it back and say who is to blame."""
        at, sections = self.lowest(buffer), self._sections[buffer]
        if at + int(self._problem.size[buffer]) > self._capacity:
            return Conflict(self._under(buffer), buffer)
        self._undo.append(self._sky[sections])
        self._sky[sections] = at + int(self._problem.size[buffer])
        self._waiting[sections] -= int(self._problem.size[buffer])
        self.offsets[buffer], self._level[buffer] = at, len(self.placed)
        self.placed.append(buffer)
        conflict = self._conflict(sections) if propagate else None
        if conflict is not None:
            self.undo()
        return conflict

    def undo(self) -> None:
        """Take back the last placement."""
        buffer = self.placed.pop()
        sections = self._sections[buffer]
        self._sky[sections] = self._undo.pop()
        self._waiting[sections] += int(self._problem.size[buffer])
        self.offsets[buffer] = self._level[buffer] = -1

    def _conflict(self, sections: Ints) -> Conflict | None:
        """A section with more bytes waiting than room above its skyline, or a waiting buffer whose highest section is too high."""
        over = sections[self._sky[sections] + self._waiting[sections] > self._capacity]
        if len(over):
            return Conflict(self._levels_in(over[:1]), None)
        waiting = np.flatnonzero(self.waiting_mask() & self._live[:, sections].any(axis=1))
        if not len(waiting):
            return None
        floor = np.where(self._live[waiting], self._sky, 0).max(axis=1)
        for buffer in waiting[floor + self._problem.size[waiting] > self._capacity].tolist():
            return Conflict(self._under(buffer), buffer)
        if self._pins or "alignment" in self._problem.features:
            for buffer in waiting.tolist():
                if self.lowest(buffer) + int(self._problem.size[buffer]) > self._capacity:
                    return Conflict(self._under(buffer), buffer)
        return None

    def _under(self, buffer: int) -> set[int]:
        """Levels of the placements that a buffer would rest on."""
        sections = self._sections[buffer]
        return self._levels_in(sections[self._sky[sections] == self._sky[sections].max()])

    def _levels_in(self, sections: Ints) -> set[int]:
        blamed = self._level[self._live[:, sections].any(axis=1)]
        return set(blamed[blamed >= 0].tolist())
