"""Explains why a tensor is where it is: the price of its bytes of fast memory over time, against
the cost of moving it.

The multipliers of the lower bound are prices: a tensor that stays in the fast memory costs a rent,
its bytes times the price of every kernel during its stay. It leaves where the rent would exceed the
seconds of the copies and of slower kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.placement.decisions import Stay, TensorPlacement, operands_in_slow
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.timing import move_seconds


@dataclass(frozen=True)
class Stretch:
    """A part of a tensor's lifetime in one memory, kernels ``start`` to ``end`` - 1.

    ``rent`` is the price of its bytes in the fast memory meanwhile, in seconds: paid there, saved
    elsewhere. ``copies`` are the seconds of the copies that begin the stretch or are made in it,
    ``slower`` those by which kernels take longer because they use the tensor in the slow memory
    (each taken alone, with the other operands where they are).
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
    """The stretches of one tensor's life, in order. O(kernels + stays)."""
    paid = np.concatenate(([0.0], np.cumsum(prices))) * float(sequence.sizes[tensor])
    first, end = sequence.lifetimes[tensor].tolist()
    stays = sorted(
        (stay for stay in placement.stays if stay.tensor == tensor), key=lambda stay: stay.start
    )
    in_slow = operands_in_slow(sequence, placement)
    stretches = []
    for where, start, stop in _parts(stays, first, end):
        uses = [k for k, _ in sequence.uses[tensor] if start <= k < stop]
        slower = sum(
            _slower(sequence, in_slow[k], placement.algorithms[k], k, tensor) for k in uses
        )
        stretches.append(
            Stretch(where, start, stop, len(uses), float(paid[stop] - paid[start]), 0.0, slower)
        )
    return tuple(_with_copies(sequence, placement, tensor, stretches))


def _parts(
    stays: Sequence[Stay], first: int, end: int
) -> list[tuple[Literal["fast", "slow"], int, int]]:
    parts: list[tuple[Literal["fast", "slow"], int, int]] = []
    at = first
    for stay in stays:
        if stay.start > at:
            parts.append(("slow", at, stay.start))
        parts.append(("fast", stay.start, stay.end))
        at = stay.end
    if at < end:
        parts.append(("slow", at, end))
    return parts


def _slower(
    sequence: KernelSequence, in_slow: Sequence[bool], algorithm: int, k: int, tensor: int
) -> float:
    kernel = sequence.kernels[k]
    if not any(
        slow and operand.tensor == tensor
        for operand, slow in zip(kernel.operands, in_slow, strict=True)
    ):
        return 0.0
    moved = [
        slow and operand.tensor != tensor
        for operand, slow in zip(kernel.operands, in_slow, strict=True)
    ]
    return kernel.seconds(in_slow, algorithm) - kernel.seconds(moved, algorithm)


def _with_copies(
    sequence: KernelSequence, placement: TensorPlacement, tensor: int, stretches: list[Stretch]
) -> list[Stretch]:
    """Add each copy to the stretch that it begins: a copy out to the next one in the slow memory, a
    copy in to its stay."""
    result = list(stretches)
    for move in placement.moves:
        if move.tensor != tensor:
            continue
        where = "fast" if move.to_fast else "slow"
        at = move.start if move.to_fast else move.end
        owner = next(
            (i for i, s in enumerate(result) if s.where == where and s.start >= at), len(result) - 1
        )
        result[owner] = replace(
            result[owner], copies=result[owner].copies + move_seconds(sequence, move)
        )
    return result
