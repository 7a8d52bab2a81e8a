"""Splits an operator whose working set exceeds the fast memory into tiles over its output
channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.targets.hardware import Style, Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.window import Window

_MOST_TILES = 256
"""Tiles of one operator, at most."""
_MOST_READ = 8
"""Times the fast memory's bytes that all tiles may read of what they share, at most, for more than
two to fit at once."""
_SIDE_BY_SIDE = (16, 4, 3, 2, 1)
"""Numbers of tiles that should fit at once, tried in this order, so that one is fetched while
others are computed."""


@dataclass(frozen=True)
class Split:
    """A split of an operator into ``tiles`` parts of its ``channels`` output channels, as equal as
    whole steps of channels allow."""

    channels: int
    tiles: int
    step: int = 1

    def part(self, tile: int) -> int:
        """Return the number of channels of one tile."""
        first, last = self.range(tile)
        return last - first

    def amount_of_tile(self, amount: int, tile: int) -> int:
        """Bytes, or operations, out of an amount that belong to one tile; those of all tiles add up
        to the amount."""
        first, last = self.range(tile)
        return amount * last // self.channels - amount * first // self.channels

    def range(self, tile: int) -> tuple[int, int]:
        """Return the first channel of a tile, and the first of the next."""
        return self._edge(tile), self._edge(tile + 1)

    def _edge(self, tile: int) -> int:
        return min(self.channels, -(-self.channels // self.step) * tile // self.tiles * self.step)

    def overlap(self, tile: int, other: Split, part: int) -> int:
        """Count the channels that a tile shares with a part of another split of the same
        channels."""
        (first, last), (begin, end) = self.range(tile), other.range(part)
        return max(0, min(last, end) - max(first, begin))

    def parts_met(self, tile: int, other: Split) -> Sequence[int]:
        """Parts of another split of the same channels that share some with a tile."""
        first, last = self.range(tile)
        return range(other._part_of(first), other._part_of(last - 1) + 1)

    def _part_of(self, channel: int) -> int:
        # Part p begins at floor(steps p / tiles) steps: the last that begins at or before a
        # channel, without looking at all.
        return ((channel // self.step + 1) * self.tiles - 1) // -(-self.channels // self.step)


WHOLE = Split(1, 1)


@dataclass(frozen=True)
class Sizes:
    """Output channels of tiles that suit a machine: multiples of ``step``, and if more than one is
    at work ``least``.

    ``balance`` is the number of multiply-accumulates that all cores do while the main link brings a
    byte.
    """

    step: int = 1
    least: int = 1
    balance: float = 0.0


ANY = Sizes()


def sizes_for(target: Target) -> Sizes:
    """Tiles that fill the arrays of all cores, and that are not sooner done than all cores can read
    the other operand once more.

    A tile of ``k`` channels takes ``k`` multiply-accumulates for each element of what it reads as a
    whole; the least ``k`` is the rate of all cores over the bandwidth of the memory that they read
    it from.
    """
    extents = {Style.WEIGHT_STATIONARY: "rows", Style.OUTPUT_STATIONARY: "columns"}
    step = max(
        (
            getattr(core, extents[core.style])
            for core in target.cores
            if core.style in extents and not core.flexible
        ),
        default=1,
    )
    rate = sum(
        core.rows * core.columns * core.macs_per_cycle[8] * core.clock for core in target.cores
    )
    bandwidth = (target.fast or target.main).read_bandwidth
    return Sizes(
        step, max(1, math.ceil(rate / bandwidth / step)) * step, rate / target.main.read_bandwidth
    )


def choose_split(fused: FusedOp, capacity: int, sizes: Sizes = ANY) -> Split:
    """Choose the fewest tiles of which several fit into ``capacity`` bytes at once; :data:`WHOLE`
    if no split is needed or helps.

    A tile reads its share of what divides by channel and all of everything else. Only a single
    ungrouped, non-recurrent loop nest can be cut, and only if its results have as many bytes for
    every channel. Tiles have ``sizes``, unless none of them would fit.
    """
    total = sum(access.bytes for access in (*fused.reads, *fused.writes))
    if total <= capacity or not can_split(fused):
        return WHOLE
    nest = fused.nests[0]
    whole = sum(access.bytes for access in fused.reads if access.tensor not in fused.by_channel)
    shared = total - whole
    if whole >= capacity:
        return WHOLE
    # Where the main link is what takes time, cores wait for bytes whatever the tiles are, and it
    # should not carry anything twice.
    computes = nest.macs >= shared * sizes.balance > 0
    for at_once in _SIDE_BY_SIDE if computes else _SIDE_BY_SIDE[1:]:
        room = (capacity - whole) // at_once
        for step in dict.fromkeys((sizes.step, 1)):
            steps = -(-nest.k // step)
            most = (
                min(steps, _MOST_TILES)
                if at_once == 1
                else min(steps, max(1, nest.k // sizes.least), _MOST_TILES)
            )
            if at_once > 2 and not computes:
                most = min(most, _MOST_READ * capacity // max(1, whole))
            for tiles in range(-(-shared // max(1, room)), most + 1):
                if shared * min(nest.k, -(-steps // tiles) * step) // nest.k <= room:
                    return Split(nest.k, tiles, step)
    return WHOLE


def plain_splits(groups: Sequence[FusedOp], target: Target) -> list[Split]:
    """How operators are cut that nothing else cuts: only as far as they exceed the fast memory."""
    room, sizes = target.fast.capacity if target.fast else None, sizes_for(target)
    return [choose_split(group, room, sizes) if room else WHOLE for group in groups]


def can_split(fused: FusedOp) -> bool:
    """Whether an operator can be split into tiles of its output channels at all, on some
    machine."""
    if len(fused.nests) != 1:
        return False
    nest = fused.nests[0]
    single = nest.groups == 1 and nest.repeats == 1 and nest.k > 1 and bool(nest.output)
    return single and not any(write.bytes % nest.k for write in fused.writes)


def result_channels(graph: Graph, fused: FusedOp) -> tuple[int, ...]:
    """Elements outside, along and inside the output channels of all that an operator writes; empty
    where that is not known.

    What is fused to an operator makes as many elements in the same order, whatever their shape.
    """
    shape, axis = _channel_axis(graph, fused)
    count = math.prod(shape)
    sizes = [math.prod(graph.tensors[write.tensor].shape) for write in fused.writes]
    return (
        _around(shape, axis)
        if shape and shape[axis] == fused.nests[0].k and all(size == count for size in sizes)
        else ()
    )


def operand_channels(graph: Graph, fused: FusedOp, storage: str) -> tuple[int, ...]:
    """Elements outside, along and inside the output channels of an operand, of which each needs its
    own; empty where that is not known."""
    shape, axis = _channel_axis(graph, fused)
    found = set()
    for op in fused.ops:
        alike = graph.tensors[op.writes[0].tensor].shape == shape
        for read in (each for each in op.reads if graph.tensors[each.tensor].storage == storage):
            own = graph.tensors[storage if read.of_storage else read.tensor].shape
            along = [d for d, window in enumerate(read.windows) if window == Window(axis)]
            found.add(
                _around(own, along[0])
                if alike and len(along) == 1 and own[along[0]] == fused.nests[0].k
                else ()
            )
    return found.pop() if len(found) == 1 else ()


def _channel_axis(graph: Graph, fused: FusedOp) -> tuple[tuple[int, ...], int]:
    """Shape of an operator's result and the dimension of its output channels: second in a
    convolution's, last in a matrix product's."""
    shape = graph.tensors[fused.main.writes[0].tensor].shape
    return shape, 1 if "Conv" in fused.main.kind and len(shape) > 1 else len(shape) - 1


def _around(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
