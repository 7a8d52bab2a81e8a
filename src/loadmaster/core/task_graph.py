"""Edges of a task graph in compressed rows, the form that the native kernels take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def successors(edges: Sequence[tuple[int, int]], tasks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``(first, next)``: the successors of task ``t`` are ``next[first[t]:first[t + 1]]``. O(edges log edges)."""
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    first = np.zeros(tasks + 1, dtype=np.int64)
    np.cumsum(np.bincount(pairs[:, 0], minlength=tasks), out=first[1:])
    return first, np.ascontiguousarray(pairs[:, 1])
