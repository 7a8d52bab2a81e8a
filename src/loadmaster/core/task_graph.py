"""Task graphs: their form in native code, and the upward rank of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Ints

Number = TypeVar("Number", int, float)


def task_graph(edges: Ints | Sequence[tuple[int, int]], tasks: int) -> _native.TaskGraph:
    """Return the graph of ``tasks`` tasks with edges (predecessor, successor). O(edges log
    edges)."""
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    first = np.zeros(tasks + 1, dtype=np.int64)
    np.cumsum(np.bincount(pairs[:, 0], minlength=tasks), out=first[1:])
    return _native.TaskGraph(first, np.ascontiguousarray(pairs[:, 1]))


def upward_rank(after: Sequence[Sequence[int]], cost: Sequence[Number]) -> list[Number]:
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
