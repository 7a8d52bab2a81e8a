"""Peaks of the load: maximal sets of buffers that are alive together, the largest first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints


@dataclass(frozen=True, slots=True)
class Peak:
    """Buffers alive at one instant, the largest first, and the sum of their bytes, gaps
    included."""

    instant: int
    bytes: int
    buffers: tuple[int, ...]


def fullest(lower: Ints, upper: Ints) -> Ints:
    """Instants at which a maximal set is alive: a lifetime begins there, and one ends before the
    next begins. O(n log n)."""
    instants = np.unique(lower)
    ended = np.searchsorted(np.sort(upper), instants, side="right")
    return instants[np.append(ended[1:], len(upper)) > ended]


def peaks(problem: Problem, members: Ints, count: int = 1) -> list[Peak]:
    """The ``count`` largest of the maximal sets of ``members`` that are alive together. O(n log
    n)."""
    lower, upper, size = problem.lower[members], problem.upper[members], problem.size[members]
    instants = fullest(lower, upper)
    load = np.zeros(len(instants), dtype=np.int64)
    for times, sign in ((lower, 1), (upper, -1)):
        order = np.argsort(times, kind="stable")
        sums = np.concatenate([[0], np.cumsum(size[order])])
        load += sign * sums[np.searchsorted(times[order], instants, side="right")]
    found = []
    for at in np.argsort(-load, kind="stable")[:count].tolist():
        alive = members[(lower <= instants[at]) & (upper > instants[at])]
        alive = alive[np.argsort(-problem.size[alive], kind="stable")]
        found.append(Peak(int(instants[at]), int(load[at]), tuple(alive.tolist())))
    return found
