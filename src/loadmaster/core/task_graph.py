"""Conversion of task graphs for native code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Ints


def task_graph(edges: Ints | Sequence[tuple[int, int]], tasks: int) -> _native.TaskGraph:
    """Return the graph of ``tasks`` tasks with edges (predecessor, successor). O(edges log
    edges)."""
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    first = np.zeros(tasks + 1, dtype=np.int64)
    np.cumsum(np.bincount(pairs[:, 0], minlength=tasks), out=first[1:])
    return _native.TaskGraph(first, np.ascontiguousarray(pairs[:, 1]))
