"""How often a loop nest fetches each operand, given a private buffer: the best of three loop orders and many tile sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.cost.analytical.nests import ACCUMULATOR, NestTable

_CHUNK = 64
"""Input channels fetched at a time when sums stay in the buffer."""
_ROWS_AT_ONCE = 512
"""Loop nests whose tilings are compared in one array, to bound memory."""
_HALVINGS = 20
"""Halvings of an extent that are tried, at most."""


@dataclass(frozen=True)
class Tiling:
    """How often each operand of each nest crosses the core's port (at least once), and the bytes of buffer that a tile of it takes."""

    input_times: Floats
    weight_times: Floats
    input_tile: Floats
    weight_tile: Floats
    output_tile: Floats

    @property
    def buffer(self) -> Floats:
        """Bytes of the private buffer that all tiles take together."""
        return self.input_tile + self.weight_tile + self.output_tile


def best_tiling(nests: NestTable, capacity: Floats) -> Tiling:
    """Find the tiling of each nest that moves the fewest bytes within ``capacity`` bytes of private buffer; of equals, the smallest.

    Loop orders: weights of some output channels stay while all positions stream by; a block of the input stays while
    all weights stream by; a block of sums stays while input and weights stream by in chunks of input channels. Tiles
    that stream are double-buffered. Where nothing fits, the smallest tiling is returned and its ``buffer`` exceeds the
    capacity. Tile sizes are halvings of rows, then columns, and of output channels. Time and memory are linear in the
    nests.
    """
    size = len(capacity)
    parts = [_best(nests, slice(first, first + _ROWS_AT_ONCE), capacity) for first in range(0, size, _ROWS_AT_ONCE)]
    names = Tiling.__dataclass_fields__
    return Tiling(**{name: np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0)]) for name in names})


def _best(nests: NestTable, rows: slice, capacity: Floats) -> Tiling:
    column = _Column(nests, rows)
    orders = [_weights_stay(column), _input_stays(column), _sums_stay(column, _CHUNK), _sums_stay(column, 1)]
    bests = [_best_of_order(order, column, capacity[rows]) for order in orders]
    names = Tiling.__dataclass_fields__
    chosen = {name: np.stack([getattr(best, name) for best in bests], axis=1) for name in names}
    pick = _least(Tiling(**chosen), column.input[:, 0], column.weight[:, 0], capacity[rows])[:, None]
    return Tiling(**{name: np.take_along_axis(values, pick, axis=1)[:, 0] for name, values in chosen.items()})


def _best_of_order(order: Tiling, column: _Column, capacity: Floats) -> Tiling:
    shape = column.shape
    position, channel = np.divmod(_least(order, column.input, column.weight, capacity), shape[2])
    at = (np.arange(shape[0]), position, channel)
    return Tiling(**{name: np.broadcast_to(getattr(order, name), shape)[at] for name in Tiling.__dataclass_fields__})


def _least(options: Tiling, input_bytes: Floats, weight_bytes: Floats, capacity: Floats) -> Ints:
    """Index, over all but the first axis, of the option that moves fewest bytes among those that fit; where none does, of the smallest.

    Ties go to the smaller buffer, then to the first: always the same choice.
    """
    traffic = input_bytes * options.input_times + weight_bytes * options.weight_times
    traffic, buffer = (values.reshape(len(capacity), -1) for values in np.broadcast_arrays(traffic, options.buffer))
    # Where nothing fits, only the smallest are candidates.
    room = np.maximum(capacity, buffer.min(axis=1))[:, None]
    traffic = np.where(buffer <= room, traffic, np.inf)
    ties = traffic == traffic.min(axis=1, keepdims=True)
    return np.asarray(np.argmin(np.where(ties, buffer, np.inf), axis=1))


class _Column:
    """A block of nests against all tile sizes: arrays of shape (nests, position tiles, channel tiles)."""

    def __init__(self, nests: NestTable, rows: slice) -> None:
        def take(values: Floats) -> Floats:
            return values[rows].reshape(-1, 1, 1)

        groups, batch = take(nests.groups), take(nests.batch)
        self.input, self.weight = take(nests.input_bytes), take(nests.weight_bytes)
        # Operand bytes of one group (and one image of the batch): a tile never spans two.
        self.group_input = self.input / (groups * batch)
        self.group_weight = self.weight / groups
        self.group_output = take(nests.output_bytes) / (groups * batch)
        self.batch, self.repeats = batch, take(nests.repeats)
        self.k, self.c = take(nests.k), take(nests.c)
        y, x = take(nests.y), take(nests.x)
        halving = 2.0 ** np.arange(_halvings(2 * y * x)).reshape(1, -1, 1)
        self.ty = np.ceil(y / halving)
        # Columns are cut only once a tile is down to a single row.
        self.tx = np.ceil(x / np.maximum(1.0, halving / 2.0 ** np.ceil(np.log2(y))))
        self.tk = np.ceil(self.k / 2.0 ** np.arange(_halvings(self.k)).reshape(1, 1, -1))
        self.positions = np.ceil(y / self.ty) * np.ceil(x / self.tx)
        self.groups, self.images = groups, groups * batch
        self.channels = np.ceil(self.k / self.tk)
        self.position_share = self.ty * self.tx / (y * x)
        self.channel_share = self.tk / self.k
        rows_in = _input_extent(self.ty, y, take(nests.stride_y), take(nests.dilation_y), take(nests.r))
        columns_in = _input_extent(self.tx, x, take(nests.stride_x), take(nests.dilation_x), take(nests.s))
        self.input_share = rows_in * columns_in
        # Neighbouring tiles overlap: the halo is fetched with each of them.
        self.halo = np.maximum(1.0, self.positions * self.input_share)
        self.shape = np.broadcast_shapes(self.ty.shape, self.tk.shape)


def _halvings(extent: Floats) -> int:
    """Number of tile sizes to try: halving a tile of one position or channel changes nothing."""
    return min(_HALVINGS, int(np.ceil(np.log2(extent.max()))) + 2)


def _input_extent(tile: Floats, extent: Floats, stride: Floats, dilation: Floats, taps: Floats) -> Floats:
    """Share of the input's rows (or columns) that a tile of the output needs."""
    window = dilation * (taps - 1) + 1
    return np.minimum(1.0, ((tile - 1) * stride + window) / ((extent - 1) * stride + window))


def _weights_stay(t: _Column) -> Tiling:
    stay = t.group_weight * t.channel_share
    # A single tile of all weights also serves every repeat; several must be fetched again in each.
    return Tiling(
        input_times=t.halo * t.channels,
        weight_times=np.where(t.channels > 1, t.repeats, 1.0),
        input_tile=_doubled(t.group_input * t.input_share, t.positions * t.images),
        weight_tile=stay,
        output_tile=_doubled(t.group_output * t.position_share * t.channel_share, t.positions * t.channels * t.images),
    )


def _input_stays(t: _Column) -> Tiling:
    return Tiling(
        input_times=t.halo,
        weight_times=t.positions * t.batch * t.repeats,
        input_tile=t.group_input * t.input_share,
        weight_tile=_doubled(t.group_weight * t.channel_share, t.channels * t.groups),
        output_tile=_doubled(t.group_output * t.position_share * t.channel_share, t.positions * t.channels * t.images),
    )


def _sums_stay(t: _Column, chunk: int) -> Tiling:
    depth = np.minimum(t.c, chunk) / t.c
    return Tiling(
        input_times=t.halo * t.channels,
        weight_times=t.positions * t.batch * t.repeats,
        input_tile=2 * t.group_input * t.input_share * depth,
        weight_tile=2 * t.group_weight * t.channel_share * depth,
        output_tile=np.maximum(t.ty * t.tx * t.tk * ACCUMULATOR, t.group_output * t.position_share * t.channel_share),
    )


def _doubled(tile: Floats, tiles: Floats) -> Floats:
    """A second buffer lets the next tile arrive during this one; a single tile needs none."""
    return tile * np.where(tiles > 1, 2.0, 1.0)
