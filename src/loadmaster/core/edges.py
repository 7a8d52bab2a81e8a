"""What waits for what, as arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from loadmaster.core.arrays import Ints


def edges_of(after: Sequence[Sequence[int]]) -> Ints:
    """The edges of a graph, shape (edges, 2), from what each task waits for."""
    counts = np.fromiter(map(len, after), dtype=np.int64, count=len(after))
    before = np.fromiter(
        itertools.chain.from_iterable(after), dtype=np.int64, count=int(counts.sum())
    )
    return np.stack([before, np.repeat(np.arange(len(after)), counts)], axis=1)
