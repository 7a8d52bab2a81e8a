"""Placements with addresses, and the blocks that an allocator packs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.allocation.allocate import allocate
from loadmaster.core.arrays import Ints
from loadmaster.placement.decisions import Division, TensorPlacement
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.timing import MovementTimeline, time_moves


@dataclass(frozen=True)
class Placed:
    """A placement of a sequence, or of its pieces."""

    sequence: KernelSequence
    placement: TensorPlacement
    division: Division | None = None


@dataclass(frozen=True)
class Packed:
    """A placement whose stays and workspaces have addresses within the limit."""

    placed: Placed
    offsets: tuple[int, ...]
    timeline: MovementTimeline
    peak: int

    @property
    def seconds(self) -> float:
        """Seconds of the sequence."""
        return self.timeline.total


def blocks_of(placed: Placed) -> tuple[Ints, Ints, Ints]:
    """First kernels, ends and bytes of all stays, then of all kernels' workspaces."""
    sequence, placement = placed.sequence, placed.placement
    rows = [(stay.start, stay.end, sequence.tensors[stay.tensor].bytes) for stay in placement.stays]
    for k, (kernel, chosen) in enumerate(zip(sequence.kernels, placement.algorithms, strict=True)):
        rows.append((k, k + 1, kernel.algorithms[chosen].workspace))
    lower, upper, size = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
    return lower, upper, size


def packed_at(placed: Placed, offsets: Ints) -> Packed:
    """Time a placement that has addresses."""
    *_, size = blocks_of(placed)
    peak = int(np.where(size > 0, offsets + size, 0).max(initial=0))
    return Packed(
        placed, tuple(offsets.tolist()), time_moves(placed.sequence, placed.placement), peak
    )


def tops(placed: Placed) -> Ints:
    """Highest address in use while each kernel runs, in a packing that is as low as can be found
    quickly."""
    lower, upper, size = blocks_of(placed)
    lowest = allocate(
        (lower, upper, size), alignment=placed.sequence.alignment, strategy="best-fit"
    )
    assert lowest.offsets is not None
    highest = np.zeros(len(placed.sequence.kernels), dtype=np.int64)
    for start, end, high in zip(
        lower.tolist(), upper.tolist(), (lowest.offsets + size).tolist(), strict=True
    ):
        np.maximum(highest[start:end], high, out=highest[start:end])
    return highest
