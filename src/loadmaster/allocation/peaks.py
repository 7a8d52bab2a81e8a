"""Where the most bytes are needed: sets of buffers that are alive together, the fullest first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints


@dataclass(frozen=True, slots=True)
class Peak:
    """Buffers that are alive together at an instant, the largest first, and their bytes together,
    gaps in them included."""

    instant: int
    bytes: int
    buffers: tuple[int, ...]


def peaks(problem: Problem, members: Ints, count: int = 1) -> list[Peak]:
    """The fullest of the maximal sets of ``members`` that are alive together.

    A set is maximal at an instant at which a buffer begins if another ends before the next one
    begins. O(n log n).
    """
    lower, upper, size = problem.lower[members], problem.upper[members], problem.size[members]
    begin, end = np.argsort(lower, kind="stable"), np.argsort(upper, kind="stable")
    instants = np.unique(lower)
    begun = np.searchsorted(lower[begin], instants, side="right")
    ended = np.searchsorted(upper[end], instants, side="right")
    sums = [np.concatenate([[0], np.cumsum(size[order])]) for order in (begin, end)]
    load = sums[0][begun] - sums[1][ended]
    maximal = np.flatnonzero([*ended[1:], len(members)] > ended)
    found = []
    for at in maximal[np.argsort(-load[maximal], kind="stable")][:count].tolist():
        alive = members[(lower <= instants[at]) & (upper > instants[at])]
        alive = alive[np.argsort(-problem.size[alive], kind="stable")]
        found.append(Peak(int(instants[at]), int(load[at]), tuple(alive.tolist())))
    return found
