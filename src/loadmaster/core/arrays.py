"""Array types, the limit of whole numbers, and small functions on arrays and columns."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import repeat
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Record = TypeVar("Record")


def records_of(kind: type[Record], count: int, *columns: Iterable[Any]) -> list[Record]:
    """Make ``count`` records of a frozen dataclass with slots from one column per field.

    Equivalent to ``count`` calls of the class in a third of the time, because :func:`map` loops
    over records. All fields must be given, and ``__post_init__`` is not called. O(count x fields).
    """
    made = list(map(object.__new__, repeat(kind, count)))
    for field, column in zip(fields(kind), columns, strict=True):  # type: ignore[arg-type]
        deque(map(getattr(kind, field.name).__set__, made, column), maxlen=0)
    return made


def column_of(records: Iterable[Any], field: str, kind: Any = np.float64) -> Any:
    """Return the values of one field of records as an array."""
    return np.array(list(map(attrgetter(field), records)), dtype=kind)


Ints = NDArray[np.int64]
"""Whole numbers: bytes, picoseconds, indices."""
WHOLE_LIMIT = 2**62
"""Upper limit of bytes, addresses, instants, costs and operations, so that the sum of two fits into
64 bits."""
Floats = NDArray[np.float64]
"""Real numbers in double precision: seconds, bytes per second, costs."""
Mask = NDArray[np.bool_]
"""Boolean masks."""
Bits = NDArray[np.uint8]
"""Booleans as bytes 0 and 1, for native code."""
Int32s = NDArray[np.int32]
"""Integers of 32 bits, for the large populations of mappings."""
UInt32s = NDArray[np.uint32]
"""Unsigned integers of 32 bits: priorities of mappings."""
Array = NDArray[Any]
"""Numbers of any type, such as the constants of a network."""


def grouped_sums(group: Ints, rows: Array, groups: int) -> Floats:
    """Sum rows of shape (n, ...) by group, in order: shape (groups, ...). O(n)."""
    columns = np.reshape(rows, (len(group), math.prod(np.shape(rows)[1:])))
    sums = [np.bincount(group, weights=column, minlength=groups) for column in columns.T]
    return (
        np.stack(sums, axis=1).astype(np.float64, copy=False).reshape(groups, *np.shape(rows)[1:])
    )


def edges_of(after: Sequence[Sequence[int]]) -> Ints:
    """Edges (predecessor, task) of a graph, shape (edges, 2), from the predecessors of each
    task."""
    counts = np.fromiter(map(len, after), np.int64)
    before = np.fromiter(itertools.chain.from_iterable(after), np.int64)
    return np.stack([before, np.repeat(np.arange(len(after)), counts)], axis=1)


Number = TypeVar("Number", bound=np.generic)


def distinct_rows(rows: NDArray[Number]) -> tuple[NDArray[Number], Ints, Ints]:
    """Return the distinct rows in ascending order, the index of every row's distinct row, and how
    often each occurs; O(rows log rows x columns).

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
    """Concatenate the ranges ``first[i]`` to ``first[i] + count[i]`` (exclusive). O(numbers)."""
    ends = np.cumsum(count)
    return np.asarray(
        np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - count), count),
        dtype=np.int64,
    )
