"""What arrays hold: their types, so that every signature names them alike, what whole numbers stay
below, edges of tasks, and many records at once from columns."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Record = TypeVar("Record")


def records_of(kind: type[Record], count: int, *columns: Iterable[Any]) -> list[Record]:
    """``count`` records of a frozen dataclass with slots, given a value of every field for each of
    them, field by field.

    As calling it ``count`` times, in a third of the time: the loops over records are those of
    :func:`map` and not Python's. Fields have no defaults here, and ``__post_init__`` is not called.
    O(count x fields).
    """
    made = list(map(object.__new__, repeat(kind, count)))
    for field, column in zip(fields(kind), columns, strict=True):  # type: ignore[arg-type]
        deque(map(getattr(kind, field.name).__set__, made, column), maxlen=0)
    return made


Ints = NDArray[np.int64]
"""Whole numbers: bytes, picoseconds, indices."""
WHOLE_LIMIT = 2**62
"""Bytes, addresses, instants, costs and operations stay below this, so that the sum of two fits 64
bits."""
Floats = NDArray[np.float64]
"""Real numbers in double precision: seconds, bytes per second, costs."""
Mask = NDArray[np.bool_]
"""Truth values: True for each item that is meant."""
Bits = NDArray[np.uint8]
"""Truth values as 0 and 1, one byte each, as native code takes them."""
Int32s = NDArray[np.int32]
"""Whole numbers of 32 bits: the indices of mappings, of which populations hold millions."""
UInt32s = NDArray[np.uint32]
"""Whole numbers of 32 bits without a sign: the priorities of mappings."""
UInt64s = NDArray[np.uint64]
"""Whole numbers of 64 bits without a sign: sums of two that fit 63 bits."""
Array = NDArray[Any]
"""Numbers of any type, such as the constants of a network."""


def grouped_sums(group: Ints, rows: Array, groups: int) -> Floats:
    """For every group the sum of its rows, shape (groups, ...) for rows of shape (n, ...), added in
    their order. O(n)."""
    columns = np.reshape(rows, (len(group), math.prod(np.shape(rows)[1:])))
    sums = [np.bincount(group, weights=column, minlength=groups) for column in columns.T]
    return (
        np.stack(sums, axis=1).astype(np.float64, copy=False).reshape(groups, *np.shape(rows)[1:])
    )


def edges_of(after: Sequence[Sequence[int]]) -> Ints:
    """The edges of a graph, shape (edges, 2), from what each task waits for."""
    counts = np.fromiter(map(len, after), dtype=np.int64, count=len(after))
    before = np.fromiter(
        itertools.chain.from_iterable(after), dtype=np.int64, count=int(counts.sum())
    )
    return np.stack([before, np.repeat(np.arange(len(after)), counts)], axis=1)


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
