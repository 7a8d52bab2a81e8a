"""Rows of a table: those that are the same, and those of several ranges."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.arrays import Ints

Number = TypeVar("Number", bound=np.generic)


def distinct_rows(rows: NDArray[Number]) -> tuple[NDArray[Number], Ints, Ints]:
    """Distinct rows in ascending order, the distinct row that each row is, and how often each
    comes; O(rows log rows x columns).

    ``numpy.unique`` with an axis compares structured arrays, in whose Python helpers NumPy turns a
    KeyboardInterrupt into a TypeError.
    """
    order = np.lexsort(rows.T[::-1]) if rows.size else np.arange(len(rows))
    ordered = rows[order]
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    number = np.cumsum(begins) - 1
    which = np.empty(len(rows), dtype=np.int64)
    which[order] = number
    return ordered[begins], which, np.bincount(number).astype(np.int64)


def ranges(first: Ints, count: Ints) -> Ints:
    """The numbers ``first[i]`` up to ``first[i] + count[i]``, one range after another.
    O(numbers)."""
    ends = np.cumsum(count)
    return np.asarray(
        np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - count), count),
        dtype=np.int64,
    )
