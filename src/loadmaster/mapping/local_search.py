"""Local search by late acceptance, and the upward rank of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from loadmaster.core.arrays import Floats

_Number = TypeVar("_Number", int, float)


def upward_rank(after: Sequence[Sequence[int]], cost: Sequence[_Number]) -> list[_Number]:
    """Upward rank (HEFT): cost of the longest chain of jobs that starts with each job; exact for
    integers.

    ``after`` has the predecessors of every job, with smaller indices. O(jobs + dependencies).
    """
    rank = list(cost)
    above = [0 * c for c in cost]
    for index in range(len(rank) - 1, -1, -1):
        # Successors have larger indices: their ranks are final.
        rank[index] += above[index]
        for before in after[index]:
            above[before] = max(above[before], rank[index])
    return rank


def reordered(priority: Floats, generator: np.random.Generator) -> Floats:
    """Give one, two or three jobs other places in the order of priorities; new priorities are
    places in it, negated."""
    order = np.argsort(-priority, kind="stable")
    for job in generator.integers(0, len(order), generator.integers(1, 4)).tolist():
        order = np.insert(order[order != job], generator.integers(0, len(order)), job)
    return -np.argsort(order).astype(np.float64)


State = TypeVar("State")
Found = TypeVar("Found")


@dataclass
class SearchState(Generic[State, Found]):
    """The state of a search: current state and result, best results, and number of evaluations.

    ``improvements`` has, for each new best, the evaluations so far and the result.
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
        """The first of the best results."""
        return self.improvements[-1][1]


def late_acceptance(
    walk: SearchState[State, Found],
    neighbour: Callable[[State], State],
    evaluate: Callable[[State], Found],
    value: Callable[[Found], tuple[float, ...]],
    *,
    memory: int,
    samples: int | None,
    expired: Callable[[], bool],
    progress: Callable[[SearchState[State, Found]], object],
) -> None:
    """Run late acceptance hill climbing (Burke and Bykov, 2017) until ``samples`` evaluations, the
    deadline or Ctrl-C.

    A neighbour is accepted if its value is at most the current one or the one ``memory`` steps ago;
    with a memory of 1 this is a (1+1) search.
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
