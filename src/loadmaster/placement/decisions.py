"""The decisions of tensor placement: when each tensor is in the fast memory, and which copies are
made when.

Position ``p`` is the instant before kernel ``p``, ``0 <= p <= K`` for ``K`` kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.placement.sequence import KernelSequence, bytes_during


class Mode(StrEnum):
    """How tensors may move (AutoTM's variants)."""

    STATIC = "static"
    """Each tensor is placed once and never moves."""
    SYNC = "sync"
    """Tensors are copied between kernels, and computation waits."""
    ASYNC = "async"
    """Copies overlap computation; a copy may span many kernels."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A residence: ``tensor`` is in the fast memory while kernels ``start`` to ``end`` - 1 run."""

    tensor: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of ``tensor``, issued when position ``start`` is reached and complete before position
    ``end`` is.

    Position ``p`` is reached when all kernels before ``p`` and all overlapping copies with ``end <=
    p`` have ended. With ``start == end`` a copy blocks computation and runs at the link's blocking
    bandwidth, else it overlaps and runs at the asynchronous one. At a position the blocking copies
    to the slow memory run first, then those to the fast memory; then overlapping copies are issued,
    and the kernel starts. What is copied out or dropped at a position can therefore make room for
    what is copied in there. While a copy blocks it has the link to itself: overlapping ones pause.

    To the fast memory: a stay of the tensor begins at ``start``; from kernel ``end`` on its kernels
    find it there, and until then in the slow memory. To the slow memory (``to_fast`` false): the
    tensor is in the fast memory from ``start`` to ``end`` and may stay on; from ``end`` on the slow
    copy is valid too, until a kernel writes the tensor. No kernel from ``start`` to ``end`` - 1
    writes the tensor.
    """

    tensor: int
    to_fast: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    """A placement: stays in the fast memory, copies in the order of each engine, and each kernel's
    algorithm.

    A kernel uses a tensor in the slow memory outside the tensor's stays. A stay that begins without
    a copy at the kernel that first writes the tensor creates it in the fast memory. A stay that
    ends without a copy drops the tensor, which is allowed if a slow copy is valid or no kernel
    reads it again. A weight that stays at positions K and 0 without a copy stays from one step to
    the next.
    """

    stays: tuple[Stay, ...]
    moves: tuple[Move, ...]
    algorithms: tuple[int, ...]


@dataclass(frozen=True)
class DividedSequence:
    """A kernel sequence whose tensors are pieces of the tensors of ``whole``.

    For each tensor of ``sequence``, ``of`` is the number of the whole tensor, and ``begin`` its
    first byte there. Pieces of a tensor are consecutive. The seconds of an operand are divided
    among its pieces in proportion to bytes, because a kernel takes the maximum of its arithmetic
    and of the sums over either memory.
    """

    whole: KernelSequence
    sequence: KernelSequence
    of: tuple[int, ...]
    begin: tuple[int, ...]


def all_fast(sequence: KernelSequence) -> TensorPlacement:
    """Place every tensor in the fast memory for its whole lifetime."""
    spans = sequence.lifetimes.tolist()
    stays = tuple(Stay(t, start, end) for t, (start, end) in enumerate(spans) if end > start)
    return TensorPlacement(stays, (), (0,) * len(sequence.kernels))


def operands_in_slow(sequence: KernelSequence, placement: TensorPlacement) -> list[list[bool]]:
    """Return, by kernel and operand, whether the operand is used in the slow memory. O(operands x
    stays of one tensor)."""
    filled = {(move.tensor, move.start): move.end for move in placement.moves if move.to_fast}
    spans: list[list[tuple[int, int]]] = [[] for _ in sequence.tensors]
    for stay in placement.stays:
        spans[stay.tensor].append((filled.get((stay.tensor, stay.start), stay.start), stay.end))
    return [
        [not any(start <= k < end for start, end in spans[o.tensor]) for o in kernel.operands]
        for k, kernel in enumerate(sequence.kernels)
    ]


def blocks_of(sequence: KernelSequence, placement: TensorPlacement) -> tuple[Ints, Ints, Ints]:
    """First kernels, ends and bytes of all blocks with an address: stays, then workspaces."""
    rows = [(s.start, s.end, sequence.tensors[s.tensor].bytes) for s in placement.stays]
    workspace = sequence.workspaces(placement.algorithms).tolist()
    rows += [(k, k + 1, bytes_) for k, bytes_ in enumerate(workspace)]
    lower, upper, size = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
    return lower, upper, size


def fast_bytes(sequence: KernelSequence, placement: TensorPlacement) -> Ints:
    """Bytes of fast memory in use, workspace included, while each kernel runs, shape (kernels,).
    O(kernels + stays)."""
    rows = [(stay.tensor, stay.start, stay.end) for stay in placement.stays]
    tensor, start, end = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    taken = bytes_during(len(sequence.kernels), start, end, sequence.sizes[tensor])
    return taken + sequence.workspaces(placement.algorithms)
