"""Explains the placement of a tensor by prices: the price of its bytes of fast memory over time,
against the cost of moving it.

The multipliers of the lower bound are prices. The rent of a stay is the tensor's bytes times the
prices of the kernels during the stay. A tensor leaves when the rent would exceed the seconds of
copies and slower kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.placement.decisions import TensorPlacement, operands_in_slow
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.timing import move_seconds


@dataclass(frozen=True)
class Stretch:
    """A stretch of a tensor's lifetime in one memory, kernels ``start`` to ``end`` - 1.

    ``rent`` is the price of the tensor's bytes in the fast memory over the stretch, in seconds:
    paid there, saved in the slow memory. ``copies`` are the seconds of the copies that begin the
    stretch or are made in it. ``slower`` are the additional seconds of kernels that use the tensor
    in the slow memory (each taken alone, with the other operands where they are).
    """

    where: Literal["fast", "slow"]
    """The memory."""
    start: int
    """Number of the first kernel."""
    end: int
    """Number of the kernel before which it ends."""
    uses: int
    """Number of kernels that use the tensor meanwhile."""
    rent: float
    """Price of its bytes in the fast memory meanwhile, in seconds."""
    copies: float
    """Seconds of the copies that begin it or are made in it."""
    slower: float
    """Seconds by which kernels take longer because it is in the slow memory."""


def explain_tensor(
    sequence: KernelSequence, placement: TensorPlacement, prices: Floats, tensor: int
) -> tuple[Stretch, ...]:
    """Return the stretches of one tensor's lifetime, in order. O(kernels + stays)."""
    paid = np.concatenate(([0.0], np.cumsum(prices))) * float(sequence.sizes[tensor])
    parts = list(_parts(sequence, placement, tensor))
    in_slow = operands_in_slow(sequence, placement)

    def slower(k: int) -> float:
        """Return by how many seconds kernel ``k`` would be faster with the tensor in the fast
        memory."""
        kernel, algorithm = sequence.kernels[k], placement.algorithms[k]
        moved = [
            slow and operand.tensor != tensor
            for operand, slow in zip(kernel.operands, in_slow[k], strict=True)
        ]
        return kernel.seconds(in_slow[k], algorithm) - kernel.seconds(moved, algorithm)

    # A copy belongs to the stretch that it begins: one out to the next one in the slow memory, one
    # in to its stay.
    copies = [0.0] * len(parts)
    for move in placement.moves:
        if move.tensor == tensor:
            memory, at = ("fast", move.start) if move.to_fast else ("slow", move.end)
            after = (i for i, part in enumerate(parts) if part[0] == memory and part[1] >= at)
            copies[next(after, -1)] += move_seconds(sequence, move)
    stretches = []
    for (where, start, stop), copied in zip(parts, copies, strict=True):
        uses = [k for k, _ in sequence.uses[tensor] if start <= k < stop]
        stretches.append(
            Stretch(
                where,
                start,
                stop,
                len(uses),
                float(paid[stop] - paid[start]),
                copied,
                sum(map(slower, uses)),
            )
        )
    return tuple(stretches)


def _parts(
    sequence: KernelSequence, placement: TensorPlacement, tensor: int
) -> Iterator[tuple[Literal["fast", "slow"], int, int]]:
    """Yield the memories that a tensor is in, each with first kernel and end."""
    at, end = sequence.lifetimes[tensor].tolist()
    stays = sorted((s.start, s.end) for s in placement.stays if s.tensor == tensor)
    for start, stop in (*stays, (end, end)):
        if at < start:
            yield "slow", at, start
        if start < stop:
            yield "fast", start, stop
        at = stop
