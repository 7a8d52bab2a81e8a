"""What every strategy works on: the problem, its limits, and the best packing so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from loadmaster.allocation.answer import Load
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.deadline import NO_DEADLINE, Deadline
from loadmaster.core.effort import Effort


@dataclass
class Search:
    """One attempt at a problem whose buffers all take space, without reserved ranges or aliases.

    Strategies read the first group of fields, call `offer` for every packing that they find, and
    raise ``floor`` to the bytes that any packing needs as far as an exhausted search has shown.
    """

    problem: Problem
    bound: Load
    capacity: int | None = None
    seed: int = 0
    threads: int = 1
    deadline: Deadline = NO_DEADLINE
    effort: Effort = Effort.NORMAL

    offsets: Ints | None = None
    peak: int | None = None
    floor: int = 0
    interrupted: bool = False
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def goal(self) -> int:
        """Bytes at which there is nothing left to gain."""
        return self.bound.bytes if self.capacity is None else max(self.capacity, self.bound.bytes)

    @property
    def done(self) -> bool:
        """Whether nothing is left to gain."""
        if self.capacity is not None and self.floor > self.capacity:
            return True
        return self.peak is not None and self.peak <= max(self.goal, self.floor)

    def offer(self, offsets: Ints) -> bool:
        """Keep a packing if it is lower than the best so far; say whether it was."""
        peak = peak_of(self.problem, offsets)
        if self.peak is not None and peak >= self.peak:
            return False
        self.offsets, self.peak = offsets, peak
        return True

    def remaining(self) -> float:
        """Seconds left, at least 0; infinite without a limit."""
        return self.deadline.left()

    def expired(self) -> bool:
        """Whether the time limit has struck; the answer then depends on the machine, and says
        so."""
        if self.deadline.passed():
            self.interrupted = True
            return True
        return False

    def count(self, name: str, more: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + more


@dataclass(frozen=True)
class Strategy:
    """A way to look for packings: what it honours beyond lifetimes and sizes, and how it goes about
    it."""

    honours: frozenset[str]
    run: Callable[[Search], None]


def peak_of(problem: Problem, offsets: Ints) -> int:
    """Highest address in use."""
    return int(np.max(offsets + problem.size, initial=0))
