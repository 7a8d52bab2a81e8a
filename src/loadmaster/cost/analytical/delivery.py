"""Bytes that cross the on-chip network between a core's private memory and its array, for each way of mapping loops onto it.

What several elements need at once crosses once (multicast). How much of it each element can keep in its local buffer decides how
often it crosses again. A sliding window is not reused inside an element, except along filter rows in the row-stationary style.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.cycles import channels_down
from loadmaster.cost.analytical.nests import ACCUMULATOR, NestTable
from loadmaster.targets.hardware import Style


def delivered_bytes(nests: NestTable, style: Style, rows: Floats, columns: Floats, local_buffer: int) -> Floats:
    """Compute the bytes over the network for one repeat of each nest, shape (nests, shapes), as :func:`array_cycles` has it.

    Never fewer than the operands' bytes; never more for a larger ``local_buffer`` (bytes of each element).
    """
    return np.broadcast_to(_DELIVERED[style](nests, rows, columns, local_buffer), (len(nests.k), len(rows)))


def _kept(local_buffer: int, item: Floats | int, most: Floats) -> Floats:
    """Items of so many bytes that the local buffer holds: at least one, at most as many as there are."""
    return np.asarray(np.minimum(np.maximum(1.0, local_buffer // np.asarray(item)), most))


def _outputs(n: NestTable, passes: Floats) -> Floats:
    """Results leave once; partial sums leave and come back between passes."""
    return np.asarray(n.outputs * (n.element_bytes + 2 * ACCUMULATOR * (passes - 1)))


def _weight_stationary(n: NestTable, rows: Floats, columns: Floats, local_buffer: int) -> Floats:
    """Weights stay: each crosses once. Inputs stream by for every block of output channels and every tap.

    An element keeps weights of several taps and blocks of input channels and sums over them; sums leave when it moves on.
    """
    steps = np.ceil(n.c / columns) * n.taps
    passes = np.ceil(steps / _kept(local_buffer, n.element_bytes, steps))
    inputs = n.groups * n.positions * n.c * n.taps * np.ceil(n.k / rows)
    return (n.weights + inputs) * n.element_bytes + _outputs(n, passes)


def _output_stationary(n: NestTable, rows: Floats, columns: Floats, local_buffer: int) -> Floats:
    """Sums stay: results cross once. An element sums several positions side by side, and a weight crosses once for all of them."""
    turns = np.ceil(n.positions / rows)
    weights = n.weights * np.ceil(turns / _kept(local_buffer, ACCUMULATOR, turns))
    inputs = n.positions * n.c * n.taps * np.maximum(n.groups, np.ceil(n.groups * n.k / columns))
    return (weights + inputs) * n.element_bytes + _outputs(n, np.ones_like(turns))


def _row_stationary(n: NestTable, rows: Floats, columns: Floats, local_buffer: int) -> Floats:
    """Rows stay: an input row crosses once for as many output channels as stand in the array, a filter row once for a block of output rows.

    An element interleaves input channels, a filter row and a window of the input of each, and sums over them.
    """
    interleaved = _kept(local_buffer, 2 * n.s * n.element_bytes, n.c)
    passes = np.ceil(n.c / interleaved) * np.ceil(n.r / rows)
    weights = n.weights * n.batch * np.ceil(n.y / columns)
    inputs = n.inputs / n.groups * np.maximum(n.groups, np.ceil(n.groups * n.k / channels_down(n, rows)))
    return (weights + inputs) * n.element_bytes + _outputs(n, passes)


def _roofline(n: NestTable, rows: Floats, columns: Floats, local_buffer: int) -> Floats:
    """A roofline core describes no network: every operand crosses once."""
    return (n.weights + n.inputs + n.outputs) * n.element_bytes


_DELIVERED: dict[Style, Callable[[NestTable, Floats, Floats, int], Floats]] = {
    Style.WEIGHT_STATIONARY: _weight_stationary,
    Style.OUTPUT_STATIONARY: _output_stationary,
    Style.ROW_STATIONARY: _row_stationary,
    Style.ROOFLINE: _roofline,
}
