"""TelaMalloc: a heuristic that guides a constraint propagator and learns from it where to go back to.

After "TelaMalloc: Efficient On-Chip Memory Allocation for Production Machine Learning Accelerators", ASPLOS 2023. Each step takes the
instant with the highest contention, picks a buffer there by one of three rules, and puts it at the lowest address above the
skyline. The propagator then says whether the others can still be placed, and if not, which placements are to blame.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadmaster.allocation import best_fit
from loadmaster.allocation.greedy import crowding
from loadmaster.allocation.placing import place
from loadmaster.allocation.search import Search, Strategy
from loadmaster.allocation.skyline import Conflict, Skyline
from loadmaster.buffers import Ints, Problem
from loadmaster.errors import AllocationError

_MOST = 5_000
"""Its skyline holds a cell for every buffer and section."""

_PHASES = (0.95, 0.8, 0.5)
"""Shares of the highest load; buffers that meet as much of it are placed in one phase."""


@dataclass(frozen=True)
class Options:
    """Features of the search, each to be switched off on its own, and the budgets.

    Attributes
    ----------
    contention
        Go to the fullest instant next; else to the earliest one with work left.
    rules
        Candidates by lifetime, size and area; else by size alone.
    phases
        Place buffers that meet the most contention before the others.
    propagate
        Ask the propagator after every step; else notice only that a buffer itself does not fit.
    jump
        Major backtracks: go back to the latest placement to blame; else undo one placement after the other.
    prioritise
        Buffers that could not be placed are tried first from then on.
    unstick
        After ``patience`` backtracks without getting deeper, undo half of the placements.
    steps
        Placements to try for each capacity.
    """

    contention: bool = True
    rules: bool = True
    phases: bool = True
    propagate: bool = True
    jump: bool = True
    prioritise: bool = True
    unstick: bool = True
    patience: int = 64
    steps: int = 1_000


@dataclass
class Counts:
    """What a search did."""

    steps: int = 0
    minor_backtracks: int = 0
    major_backtracks: int = 0


@dataclass
class _Level:
    """One placement: who was tried here, who is next, and which earlier levels made those fail."""

    section: int
    candidates: list[int]
    tried: set[int] = field(default_factory=set)
    blamed: set[int] = field(default_factory=set)


class TelaMalloc:
    """A search for a packing within a capacity."""

    def __init__(self, problem: Problem, capacity: int, options: Options | None = None) -> None:
        self.options = options or Options()
        self.counts = Counts()
        self._problem, self._sky = problem, Skyline(problem, capacity)
        self._length = (problem.upper - problem.lower).astype(np.float64)
        self._area = self._length * problem.size
        self._priority: list[int] = []
        self._levels: list[_Level] = []
        crowd = crowding(problem)
        self._phase = np.digitize(-crowd, [-share for share in _PHASES]) if self.options.phases else np.zeros(len(problem), dtype=np.int64)

    def run(self, search: Search | None = None) -> Ints | None:
        """Offsets, or None if the steps or the candidates ran out, which proves nothing."""
        deepest = stuck = 0
        if self._sky.blocked():
            return None
        while len(self._sky.placed) < self._sky.free:
            if len(self._levels) == len(self._sky.placed):
                self._levels.append(self._open())
            level = self._levels[-1]
            buffer = self._next(level)
            if buffer is None:
                stuck += 1
                patient = stuck < self.options.patience or not self.options.unstick
                if not self._back(len(self._levels) // 2 if not patient else None):
                    return None
                stuck = stuck if patient else 0
                continue
            if self.counts.steps >= self.options.steps or (search is not None and self.counts.steps % 64 == 63 and search.expired()):
                return None
            self.counts.steps += 1
            level.tried.add(buffer)
            conflict = self._sky.place(buffer, self.options.propagate)
            if conflict is not None:
                self._learn(level, conflict)
            elif len(self._sky.placed) > deepest:
                deepest, stuck = len(self._sky.placed), 0
        return self._sky.offsets

    def _open(self) -> _Level:
        """A new level at the most contended instant of the first phase with work left."""
        waiting = self._sky.waiting_mask()
        phase = int(self._phase[waiting].min())
        section = self._sky.fullest(waiting & (self._phase == phase), earliest=not self.options.contention)
        alive = [b for b in self._sky.alive(section) if waiting[b] and self._phase[b] == phase]
        return _Level(section, self._choose(alive))

    def _choose(self, alive: list[int]) -> list[int]:
        """Three rules, in this order: longest lifetime, largest size, largest area."""
        size = self._problem.size
        if not self.options.rules:
            return sorted(alive, key=lambda b: (-int(size[b]), b))[:3]
        keys = (self._length, size, self._area)
        return list(dict.fromkeys(max(alive, key=lambda b: (float(key[b]), float(self._area[b]), -b)) for key in keys))

    def _next(self, level: _Level) -> int | None:
        here = self._priority if self.options.prioritise else []
        for buffer in [b for b in here if self._sky.covers(b, level.section)] + level.candidates:
            if buffer not in level.tried and not self._sky.is_placed(buffer):
                return buffer
        return None

    def _learn(self, level: _Level, conflict: Conflict) -> None:
        self.counts.minor_backtracks += 1
        level.blamed |= {at for at in conflict.levels if at < len(self._levels) - 1}
        if self.options.prioritise and conflict.victim is not None:
            self._promote(conflict.victim)

    def _promote(self, buffer: int) -> None:
        if buffer in self._priority:
            self._priority.remove(buffer)
        self._priority.insert(0, buffer)
        del self._priority[16:]

    def _back(self, forced: int | None) -> bool:
        """Leave the top level, whose candidates are used up, for the latest one to blame; False if there is none."""
        top = self._levels.pop()
        if not self._levels:
            return False
        target = len(self._levels) - 1
        if self.options.jump:
            target = max(top.blamed, default=-1)
        if forced is not None:
            target = min(target, forced)
        if target < 0:
            return False
        if target < len(self._levels) - 1:
            self.counts.major_backtracks += 1
            for buffer in top.candidates[:1] if self.options.prioritise else []:
                self._promote(buffer)
        else:
            self.counts.minor_backtracks += 1
        del self._levels[target + 1 :]
        self._levels[target].blamed |= {at for at in top.blamed if at < target}
        while len(self._sky.placed) > target:
            self._sky.undo()
        return True


def run(search: Search, options: Options | None = None) -> None:
    """Find any packing; then ask for less: first the bound, then ever closer to the best so far."""
    problem = search.problem
    if len(problem) > _MOST:
        raise AllocationError(f"strategy 'telamalloc' takes up to {_MOST} buffers, not {len(problem)}: use auto")
    search.offer(place(problem, best_fit.order(problem), best_fit=True))
    low = search.bound.bytes if search.capacity is None else search.capacity
    failures = 0
    while not search.done and search.peak is not None and not search.expired() and failures < 8:
        capacity = low if failures == 0 else low + (search.peak - 1 - low) * failures // 8
        attempt = TelaMalloc(problem, capacity, options)
        offsets = attempt.run(search)
        for name, value in vars(attempt.counts).items():
            search.count(name, value)
        failures += offsets is None
        if offsets is not None:
            search.offer(offsets)
        elif search.capacity is not None:
            break


STRATEGY = Strategy("telamalloc", frozenset({"alignment", "pins", "gaps"}), run)
