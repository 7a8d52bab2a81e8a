"""Bytes in use over time, for asking whether one more buffer fits."""

from __future__ import annotations

import numpy as np

from loadmaster.core.arrays import Ints


class Occupancy:
    """Bytes in use in each of ``steps`` consecutive slots; O(slots touched) per call."""

    def __init__(self, steps: int, capacity: int) -> None:
        self._used = np.zeros(steps, dtype=np.int64)
        self._capacity = capacity

    def fits(self, first: int, last: int, size: int) -> bool:
        """Whether ``size`` more bytes fit in slots [first, last)."""
        return size + int(self._used[first:last].max(initial=0)) <= self._capacity

    def add(self, first: int, last: int, size: int) -> None:
        """Take ``size`` bytes in slots [first, last)."""
        self._used[first:last] += size

    def earliest(self, last: int, size: int) -> int:
        """The first slot from which ``size`` more bytes fit in every slot before ``last``; ``last``
        itself if there is none."""
        full = np.flatnonzero(self._used[:last] > self._capacity - size)
        return int(full[-1]) + 1 if full.size else 0

    @property
    def used(self) -> Ints:
        """Bytes in use, by slot."""
        return self._used
