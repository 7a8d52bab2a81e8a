"""Bytes that go over a core's on-chip network at least, whatever the tiling and into whatever
pieces a job is cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.nests import NestTable
from loadmaster.targets.hardware import Core, Style

_Counts = tuple[Floats, Floats, Floats]
"""Elements of weights and of inputs that go to the array, and passes in which sums leave it."""


def least_delivered(nests: NestTable, core: Core) -> Floats:
    """Bytes over the on-chip network for every nest, shape (nests,), that its pieces take in
    proportion to their work at least.

    What the table of deliveries in docs/costs.md counts for a tile, for the piece that suits the
    array best: pieces have all input channels and taps, and any part of the groups, the output
    channels and the positions. The deliveries of a tiling are computed in
    ``src/native/cost/tiling.cpp``; tests hold them to this.
    """
    # A flexible array may have all of its elements in one row or one column.
    rows, columns = (
        (float(core.rows * core.columns),) * 2
        if core.flexible
        else (float(core.rows), float(core.columns))
    )
    weights, inputs, passes = _COUNTS[core.style](nests, core, rows, columns)
    sums = nests.outputs * (nests.element_bytes + 2 * core.accumulator * (passes - 1))
    return np.asarray(((weights + inputs) * nests.element_bytes + sums) * nests.repeats)


def _kept(core: Core, item: Floats | int) -> Floats:
    """Items of so many bytes that an element holds."""
    return np.maximum(1.0, np.floor(core.local_buffer / np.asarray(item, dtype=np.float64)))


def _weight_stationary(n: NestTable, core: Core, rows: float, columns: float) -> _Counts:
    inputs = n.groups * n.positions * n.c * n.taps * np.maximum(1.0, n.k / rows)
    return (
        n.weights,
        inputs,
        np.ceil(np.ceil(n.c / columns) * n.taps / _kept(core, n.element_bytes)),
    )


def _output_stationary(n: NestTable, core: Core, rows: float, columns: float) -> _Counts:
    weights = n.weights * np.maximum(1.0, n.positions / (rows * _kept(core, core.accumulator)))
    return (
        weights,
        n.groups * n.positions * n.c * n.taps * np.maximum(1.0, n.k / columns),
        np.ones_like(n.k),
    )


def _row_stationary(n: NestTable, core: Core, rows: float, columns: float) -> _Counts:
    filters = np.maximum(1.0, np.floor(rows / np.minimum(n.r, rows)))
    passes = np.ceil(n.c / _kept(core, 2 * n.s * n.element_bytes)) * np.ceil(n.r / rows)
    return (
        n.weights * n.batch * np.maximum(1.0, n.y / columns),
        n.inputs * np.maximum(1.0, n.k / filters),
        passes,
    )


def _roofline(n: NestTable, core: Core, rows: float, columns: float) -> _Counts:
    return n.weights, n.inputs, np.ones_like(n.k)


_COUNTS: dict[Style, Callable[[NestTable, Core, float, float], _Counts]] = {
    Style.WEIGHT_STATIONARY: _weight_stationary,
    Style.OUTPUT_STATIONARY: _output_stationary,
    Style.ROW_STATIONARY: _row_stationary,
    Style.ROOFLINE: _roofline,
}
