"""Cycles that a loop nest keeps a multiply-accumulate array busy, for each way of mapping loops onto it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.nests import NestTable
from loadmaster.targets.hardware import Style


def array_cycles(nests: NestTable, style: Style, rows: Floats, columns: Floats) -> Floats:
    """Compute cycles at one multiply-accumulate per element and cycle; never fewer than MACs / elements.

    ``nests`` are a column (:meth:`~loadmaster.cost.analytical.nests.NestTable.as_column`) against arrays of ``rows`` x ``columns``; the
    result, for one repeat of each nest, has shape (nests, shapes). Extents that do not divide the array leave elements idle: that is what
    the ceilings say. Filling and draining the array is left out.
    """
    return np.broadcast_to(_CYCLES[style](nests, rows, columns), (len(nests.k), len(rows)))


def _weight_stationary(n: NestTable, rows: Floats, columns: Floats) -> Floats:
    """Input channels across, output channels down, one tap and one output position a cycle (NVDLA-like).

    A row sums over its columns, so channels of different groups share the array only on its diagonal blocks.
    """
    side_by_side = np.minimum(columns // np.minimum(n.c, columns), rows // np.minimum(n.k, rows))
    groups = np.ceil(n.groups / np.minimum(side_by_side, n.groups))
    return groups * n.positions * n.taps * np.ceil(n.k / rows) * np.ceil(n.c / columns)


def _output_stationary(n: NestTable, rows: Floats, columns: Floats) -> Floats:
    """Output channels of all groups across, output positions down; each element sums its own result over channels and taps."""
    return np.ceil(n.groups * n.k / columns) * np.ceil(n.positions / rows) * n.c * n.taps


def _row_stationary(n: NestTable, rows: Floats, columns: Floats) -> Floats:
    """Output rows across; filter rows of as many output channels as fit down (Eyeriss-like); each element convolves one row.

    A matrix product has one tap and a row per row of its left factor: few rows leave most columns idle, and need little bandwidth.
    """
    channels = channels_down(n, rows)
    return n.batch * n.x * n.s * n.c * np.ceil(n.y / columns) * np.ceil(n.groups * n.k / channels) * np.ceil(n.r / rows)


def channels_down(n: NestTable, rows: Floats) -> Floats:
    """Output channels whose filter rows stand below each other in a row-stationary array."""
    return np.maximum(1.0, rows // np.minimum(n.r, rows))


def _roofline(n: NestTable, rows: Floats, columns: Floats) -> Floats:
    """Every element is busy in every cycle."""
    return n.macs / (rows * columns * n.repeats)


_CYCLES: dict[Style, Callable[[NestTable, Floats, Floats], Floats]] = {
    Style.WEIGHT_STATIONARY: _weight_stationary,
    Style.OUTPUT_STATIONARY: _output_stationary,
    Style.ROW_STATIONARY: _row_stationary,
    Style.ROOFLINE: _roofline,
}
