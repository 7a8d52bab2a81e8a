"""Split an operator whose working set exceeds the fast memory into tiles over its output channels."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.lowering.fuse import FusedOp

_MOST_TILES = 64


@dataclass(frozen=True)
class Split:
    """How an operator is cut: ``tiles`` parts of its ``channels`` output channels, as equal as whole channels allow."""

    channels: int
    tiles: int

    def part(self, tile: int) -> int:
        """Channels of one tile."""
        return self.channels * (tile + 1) // self.tiles - self.channels * tile // self.tiles

    def share(self, size: int, tile: int) -> int:
        """Bytes of ``size`` that belong to one tile; the tiles' shares add up to ``size``."""
        before = self.channels * tile // self.tiles
        return size * (before + self.part(tile)) // self.channels - size * before // self.channels


WHOLE = Split(1, 1)


def choose_split(fused: FusedOp, capacity: int) -> Split:
    """The fewest tiles whose working set fits into ``capacity`` bytes; :data:`WHOLE` if none is needed, or none can help.

    A tile reads all of the input and its share of everything else. Only a single ungrouped, non-recurrent loop nest can be cut,
    and only if the results are as large as its output, channel by channel.
    """
    total = sum(access.bytes for access in (*fused.reads, *fused.writes))
    if total <= capacity or len(fused.nests) != 1:
        return WHOLE
    nest = fused.nests[0]
    whole = sum(access.bytes for access in fused.reads if access.tensor == nest.input)
    shared = total - whole
    if nest.groups != 1 or nest.repeats != 1 or nest.k < 2 or not nest.output or whole >= capacity:
        return WHOLE
    if any(write.bytes % nest.k for write in fused.writes):
        return WHOLE
    tiles = -(-shared // (capacity - whole))
    while tiles <= min(nest.k, _MOST_TILES):
        widest = -(-nest.k // tiles)
        if whole + shared * widest // nest.k <= capacity:
            return Split(nest.k, tiles)
        tiles += 1
    return WHOLE
