"""Splits an operator whose working set exceeds the fast memory into tiles over its output channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.workloads.lowering.fuse import FusedOp

_MOST_TILES = 256
"""Tiles of one operator, at most."""
_MOST_READ = 8
"""Times the fast memory's bytes that all tiles may read of what they share, at most, for more than two to fit at once."""
_SIDE_BY_SIDE = (4, 2, 1)
"""Numbers of tiles that should fit at once, tried in this order, so that one is fetched while others are computed."""


@dataclass(frozen=True)
class Split:
    """A split of an operator into ``tiles`` parts of its ``channels`` output channels, as equal as whole channels allow."""

    channels: int
    tiles: int

    def part(self, tile: int) -> int:
        """Return the number of channels of one tile."""
        first, last = self.range(tile)
        return last - first

    def amount_of_tile(self, amount: int, tile: int) -> int:
        """Bytes, or operations, out of an amount that belong to one tile; those of all tiles add up to the amount."""
        first, last = self.range(tile)
        return amount * last // self.channels - amount * first // self.channels

    def range(self, tile: int) -> tuple[int, int]:
        """Return the first channel of a tile, and the first of the next."""
        return self.channels * tile // self.tiles, self.channels * (tile + 1) // self.tiles

    def overlap(self, tile: int, other: Split, part: int) -> int:
        """Count the channels that a tile shares with a part of another split of the same channels."""
        (first, last), (begin, end) = self.range(tile), other.range(part)
        return max(0, min(last, end) - max(first, begin))

    def parts_met(self, tile: int, other: Split) -> Sequence[int]:
        """Parts of another split of the same channels that share some with a tile."""
        first, last = self.range(tile)
        # Part p begins at floor(channels p / tiles): the last that begins at or before a channel is found without looking at all.
        return range(((first + 1) * other.tiles - 1) // self.channels, (last * other.tiles - 1) // self.channels + 1)


WHOLE = Split(1, 1)


def choose_split(fused: FusedOp, capacity: int) -> Split:
    """Choose the fewest tiles of which several fit into ``capacity`` bytes at once; :data:`WHOLE` if no split is needed or helps.

    A tile reads its share of what divides by channel and all of everything else. Only a single ungrouped, non-recurrent loop
    nest can be cut, and only if its results have as many bytes for every channel.
    """
    total = sum(access.bytes for access in (*fused.reads, *fused.writes))
    if total <= capacity or len(fused.nests) != 1:
        return WHOLE
    nest = fused.nests[0]
    whole = sum(access.bytes for access in fused.reads if access.tensor not in fused.by_channel)
    shared = total - whole
    if nest.groups != 1 or nest.repeats != 1 or nest.k < 2 or not nest.output or whole >= capacity:
        return WHOLE
    if any(write.bytes % nest.k for write in fused.writes):
        return WHOLE
    for at_once in _SIDE_BY_SIDE:
        room = (capacity - whole) // at_once
        most = _MOST_TILES if at_once <= 2 else min(_MOST_TILES, _MOST_READ * capacity // max(1, whole))
        for tiles in range(-(-shared // max(1, room)), min(nest.k, most) + 1):
            if shared * -(-nest.k // tiles) // nest.k <= room:
                return Split(nest.k, tiles)
    return WHOLE
