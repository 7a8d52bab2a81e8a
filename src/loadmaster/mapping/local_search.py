"""Local search over schedules: one neighbour at a time, kept if it is no worse than now or than
some steps ago."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from loadmaster.core.arrays import Floats

_Number = TypeVar("_Number", int, float)


def upward_rank(after: Sequence[Sequence[int]], cost: Sequence[_Number]) -> list[_Number]:
    """Cost of the longest chain of jobs that each job begins, itself included (HEFT); exact for
    integers.

    ``after`` has for every job the indices of the jobs that it waits for, all smaller than its own.
    O(jobs + dependencies).
    """
    rank = list(cost)
    above = [0 * c for c in cost]
    for index in range(len(rank) - 1, -1, -1):
        # All successors have larger indices: their ranks have been passed up already.
        rank[index] += above[index]
        for before in after[index]:
            above[before] = max(above[before], rank[index])
    return rank


def perturbed(priority: Floats, generator: np.random.Generator) -> Floats:
    """Change few priorities much or many a little."""
    share = generator.choice([0.02, 0.1, 0.5])
    strength = generator.choice([0.03, 0.2, 1.0])
    chosen = generator.random(len(priority)) < share
    return np.asarray(
        priority * np.exp(strength * generator.standard_normal(len(priority)) * chosen)
    )


State = TypeVar("State")
Found = TypeVar("Found")


@dataclass
class Walk(Generic[State, Found]):
    """Where a search is: the current state and what it gives, the best that it came upon, and how
    often it evaluated.

    ``improvements`` are the evaluations made up to each new best, with what was found.
    """

    state: State
    found: Found
    evaluations: int
    interrupted: bool = False
    improvements: list[tuple[int, Found]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.improvements.append((self.evaluations, self.found))

    @property
    def best(self) -> Found:
        """The first of the best."""
        return self.improvements[-1][1]


def late_acceptance(
    walk: Walk[State, Found],
    neighbour: Callable[[State], State],
    evaluate: Callable[[State], Found],
    value: Callable[[Found], tuple[float, ...]],
    *,
    memory: int,
    samples: int | None,
    expired: Callable[[], bool],
    progress: Callable[[Walk[State, Found]], object],
) -> None:
    """Go on until ``samples`` evaluations are made in all, time is up, or Ctrl-C comes (Burke and
    Bykov, 2017).

    A neighbour is kept if its value is no larger than the current one or the one ``memory`` steps
    ago; with a memory of 1 that is a (1+1) search, in which the current state is always among the
    best.
    """
    past = [value(walk.found)] * memory
    try:
        while samples is None or walk.evaluations < samples:
            if expired():
                walk.interrupted = True
                return
            state = neighbour(walk.state)
            found = evaluate(state)
            walk.evaluations += 1
            at = walk.evaluations % memory
            if value(found) <= value(walk.found) or value(found) <= past[at]:
                walk.state, walk.found = state, found
            past[at] = value(walk.found)
            if past[at] < value(walk.best):
                walk.improvements.append((walk.evaluations, walk.found))
            progress(walk)
    except KeyboardInterrupt:
        walk.interrupted = True
