"""Strategies by name, each from its file, and what one works on; see
:class:`loadmaster.core.registry.Registry`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.effort import Effort
from loadmaster.core.errors import AllocationError
from loadmaster.core.progress import Deadline
from loadmaster.core.registry import Registry


@dataclass
class Search:
    """One attempt at a problem whose buffers all take space, without reserved ranges or aliases.

    Strategies read the first group of fields, call `offer` for every packing that they find, and
    raise ``floor`` to the bytes that any packing needs as far as an exhausted search has shown.
    """

    problem: Problem
    bound: int
    capacity: int | None
    seed: int
    threads: int
    deadline: Deadline
    effort: Effort
    counters: dict[str, int]

    offsets: Ints | None = None
    peak: int | None = None
    floor: int = 0
    interrupted: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing is left to gain."""
        goal = max(self.bound, self.floor, self.capacity or 0)
        return self.peak is not None and self.peak <= goal

    def offer(self, offsets: Ints) -> None:
        """Keep a packing if it is lower than the best so far."""
        peak = int(np.max(offsets + self.problem.size, initial=0))
        if self.peak is None or peak < self.peak:
            self.offsets, self.peak = offsets, peak

    def expired(self) -> bool:
        """Whether the time limit has struck; the answer then depends on the machine, and says
        so."""
        self.interrupted |= self.deadline.passed()
        return self.interrupted

    def count(self, name: str, more: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + more


@dataclass(frozen=True)
class Strategy:
    """A way to look for packings: what it honours beyond lifetimes and sizes, and how it goes about
    it; without that, the native core knows it by its name."""

    honours: frozenset[str]
    run: Callable[[Search], None] | None = None


NATIVE = Strategy(
    frozenset({"alignment", "pins", "gaps", "windows", "in-place pairs", "conflict pairs"})
)
"""A strategy of the native core."""


STRATEGIES: Registry[Strategy] = Registry(
    "loadmaster.allocation.strategies", "STRATEGY", "strategy", AllocationError
)


def require_able(name: str, features: frozenset[str]) -> None:
    """Raise `AllocationError` if a strategy cannot honour a feature, with those that can."""
    beyond = sorted(features - STRATEGIES.find(name).honours)
    if beyond:
        able = [other for other in STRATEGIES.names if features <= STRATEGIES.find(other).honours]
        raise AllocationError(
            f"strategy {name!r} cannot honour {' and '.join(beyond)}: use {' or '.join(able)}"
        )
