"""Cycles that a loop nest keeps a multiply-accumulate array busy, for each way of mapping loops onto it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loadmaster.cost.nests import NestTable
from loadmaster.hardware import Core, Style

Floats = NDArray[np.float64]


def array_cycles(nests: NestTable, core: Core) -> Floats:
    """Cycles at one multiply-accumulate per element and cycle; never fewer than MACs / elements. Linear in the number of nests.

    Extents that do not divide the array leave elements idle: that is what the ceilings say. Filling and draining the array is left out.
    """
    return _CYCLES[core.style](nests, core.rows, core.columns)


def _ceil(extent: Floats, parts: Floats | int) -> Floats:
    return np.ceil(extent / parts)


def _weight_stationary(n: NestTable, rows: int, columns: int) -> Floats:
    """Input channels across, output channels down, one tap and one output position a cycle (NVDLA-like).

    A row sums over its columns, so channels of different groups share the array only on its diagonal blocks.
    """
    side_by_side = np.minimum(columns // np.minimum(n.c, columns), rows // np.minimum(n.k, rows))
    groups = _ceil(n.groups, np.minimum(side_by_side, n.groups))
    return groups * n.positions * n.r * n.s * _ceil(n.k, rows) * _ceil(n.c, columns)


def _output_stationary(n: NestTable, rows: int, columns: int) -> Floats:
    """Output channels of all groups across, output positions down; each element sums its own result over channels and taps."""
    return _ceil(n.groups * n.k, columns) * _ceil(n.positions, rows) * n.c * n.r * n.s


def _row_stationary(n: NestTable, rows: int, columns: int) -> Floats:
    """Output rows across; filter rows of as many output channels as fit down (Eyeriss-like); each element convolves one row.

    A matrix product has one tap and a row per row of its left factor: few rows leave most columns idle, and need little bandwidth.
    """
    channels = np.maximum(1, rows // np.minimum(n.r, rows))
    return n.batch * n.x * n.s * n.c * _ceil(n.y, columns) * _ceil(n.groups * n.k, channels) * _ceil(n.r, rows)


def _roofline(n: NestTable, rows: int, columns: int) -> Floats:
    """Every element busy in every cycle."""
    return n.macs / (rows * columns * n.repeats)


_CYCLES: dict[Style, Callable[[NestTable, int, int], Floats]] = {
    Style.WEIGHT_STATIONARY: _weight_stationary,
    Style.OUTPUT_STATIONARY: _output_stationary,
    Style.ROW_STATIONARY: _row_stationary,
    Style.ROOFLINE: _roofline,
}
