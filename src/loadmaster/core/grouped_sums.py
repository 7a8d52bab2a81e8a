"""Sums of rows by group."""

from __future__ import annotations

import math

import numpy as np

from loadmaster.core.arrays import Array, Floats, Ints


def grouped_sums(group: Ints, rows: Array, groups: int) -> Floats:
    """For every group the sum of its rows, shape (groups, ...) for rows of shape (n, ...), added in
    their order. O(n)."""
    columns = np.reshape(rows, (len(group), math.prod(np.shape(rows)[1:])))
    sums = [np.bincount(group, weights=column, minlength=groups) for column in columns.T]
    return (
        np.stack(sums, axis=1).astype(np.float64, copy=False).reshape(groups, *np.shape(rows)[1:])
    )
