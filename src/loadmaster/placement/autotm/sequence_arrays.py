"""Lives of tensors as paths through AutoTM's flow networks (ASPLOS 2020, section 4.2), in arrays.

A tensor's reference points are its uses. At each use it is in the fast memory or in the slow one, and in the gap before each use it stays
in the fast memory or not: that is a *life*. The copies follow from it, because where copies block computation they cost the same at any
time, so that leaving right after a use and returning right before one is never worse:

- leaving costs a copy unless a slow copy is valid, or the next use overwrites the tensor without reading it, or nobody uses it again
  (weights and outputs must be somewhere at the end);
- returning costs a copy unless the use overwrites the tensor without reading it, and leaves the slow copy valid;
- a use that writes the tensor in the fast memory makes the slow copy invalid.

The gap before the first use is the creation for what a kernel makes, the time before it for inputs, and for weights the time from their
last use round the end of the step to their first: they end as they begin. Outputs have one more gap, to the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.errors import PlacementError
from loadmaster.placement.decisions import Move, Stay, TensorPlacement
from loadmaster.placement.sequence import KernelSequence, StoredKind

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bits = NDArray[np.uint8]


class Life(IntEnum):
    """How a tensor's life begins and ends."""

    CYCLIC = 0
    INPUT = 1
    INNER = 2
    OUTPUT = 3


_LIFE = {
    StoredKind.WEIGHT: Life.CYCLIC,
    StoredKind.INPUT: Life.INPUT,
    StoredKind.INTERMEDIATE: Life.INNER,
    StoredKind.OUTPUT: Life.OUTPUT,
}


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """A sequence as arrays. Uses are numbered tensor by tensor, operands and algorithms kernel by kernel.

    Attributes
    ----------
    first, life, size, to_fast, to_slow
        Of each tensor: its first use (one entry more than tensors), `Life`, padded bytes, seconds of a copy each way.
    kernel, operand, reads, writes, fast, slow, tensor, following
        Of each use: its kernel, operand number, whether it needs the old bytes and changes them, seconds in either memory, its tensor, and
        the use after it (round the end for weights; itself if there is none).
    first_operand, use, first_algorithm, seconds, workspace, first_entry, table
        Of kernels: operands with their uses, algorithms, and tables of measured times where there are any.
    limit
        Bytes of fast memory while each kernel runs.
    """

    first: Ints
    life: Bits
    size: Ints
    to_fast: Floats
    to_slow: Floats
    kernel: Ints
    operand: Ints
    reads: Bits
    writes: Bits
    fast: Floats
    slow: Floats
    first_operand: Ints
    use: Ints
    first_algorithm: Ints
    seconds: Floats
    workspace: Ints
    first_entry: Ints
    table: Floats
    limit: Ints
    tensor: Ints
    following: Ints

    @property
    def tensors(self) -> int:
        """How many tensors there are."""
        return len(self.size)

    @property
    def kernels(self) -> int:
        """How many kernels there are."""
        return len(self.limit)

    @property
    def native(self) -> tuple[tuple[NDArray[np.generic], ...], tuple[NDArray[np.generic], ...]]:
        """Tensors and kernels as the native kernels take them."""
        return self.native_with(self.to_fast[self.tensor], self.to_slow[self.tensor])

    def native_with(self, to_fast: Floats, to_slow: Floats) -> tuple[tuple[NDArray[np.generic], ...], tuple[NDArray[np.generic], ...]]:
        """The same where a copy back before each use and a copy out after it cost these seconds, shape (uses,) each."""
        tensors = (self.first, self.life, self.size, self.kernel, self.operand, self.reads, self.writes)
        kernels = (
            self.limit,
            self.first_operand,
            self.use,
            self.first_algorithm,
            self.seconds,
            self.workspace,
            self.first_entry,
            self.table,
        )
        return (*tensors, self.fast, self.slow, to_fast, to_slow), kernels


@dataclass(frozen=True, eq=False)
class Lives:
    """A life for every tensor: in the fast memory at each use, in the gap before each use, and after the last use of each tensor."""

    fast: Bits
    stays: Bits
    tail: Bits


def checked_limits(sequence: KernelSequence, limits: NDArray[np.int64]) -> Ints:
    """The limits as an array; `PlacementError` unless there is a whole number of at least 0 for each kernel."""
    limits = np.asarray(limits)
    if limits.shape != (len(sequence.kernels),) or not np.issubdtype(limits.dtype, np.integer) or (limits < 0).any():
        raise PlacementError(f"limits: give {len(sequence.kernels)} whole numbers of bytes, one for each kernel, none below 0")
    return limits


def lifetimes(sequence: KernelSequence, limits: Ints) -> Lifetimes:
    """Arrays of ``sequence`` under ``limits``, shape (kernels,). O(operands)."""
    kernels, tensors, link = sequence.kernels, sequence.tensors, sequence.link
    operands = [operand for kernel in kernels for operand in kernel.operands]
    first_operand = _offsets([len(kernel.operands) for kernel in kernels])
    owner = np.array([operand.tensor for operand in operands], dtype=np.int64)
    order = np.argsort(owner, kind="stable")
    use = np.empty(len(operands), dtype=np.int64)
    use[order] = np.arange(len(operands))
    first = np.searchsorted(owner[order], np.arange(len(tensors) + 1)).astype(np.int64)
    life = np.array([_LIFE[tensor.kind] for tensor in tensors], dtype=np.uint8)
    following = np.arange(1, len(operands) + 1)
    used = np.flatnonzero(np.diff(first))
    following[first[used + 1] - 1] = np.where(life[used] == Life.CYCLIC, first[used], first[used + 1] - 1)
    kernel_of = np.repeat(np.arange(len(kernels)), np.diff(first_operand))
    bytes_ = np.array([tensor.bytes for tensor in tensors], dtype=np.float64)
    algorithms = [algorithm for kernel in kernels for algorithm in kernel.algorithms]
    tables = [np.ravel(kernel.measured) if kernel.measured is not None else np.empty(0) for kernel in kernels]
    return Lifetimes(
        first=first,
        life=life,
        size=sequence.sizes,
        to_fast=bytes_ / link.to_fast,
        to_slow=bytes_ / link.to_slow,
        kernel=kernel_of[order],
        operand=order,
        reads=np.array([operand.read for operand in operands], dtype=np.uint8)[order],
        writes=np.array([operand.write for operand in operands], dtype=np.uint8)[order],
        fast=np.array([operand.fast_seconds for operand in operands], dtype=np.float64)[order],
        slow=np.array([operand.slow_seconds for operand in operands], dtype=np.float64)[order],
        first_operand=first_operand,
        use=use,
        first_algorithm=_offsets([len(kernel.algorithms) for kernel in kernels]),
        seconds=np.array([algorithm.seconds for algorithm in algorithms], dtype=np.float64),
        workspace=np.array([algorithm.workspace for algorithm in algorithms], dtype=np.int64),
        first_entry=_offsets([len(table) for table in tables]),
        table=np.concatenate([np.empty(0), *tables]).astype(np.float64),
        limit=np.ascontiguousarray(limits, dtype=np.int64),
        tensor=owner[order],
        following=following,
    )


def placement_of(sequence: KernelSequence, times: Lifetimes, lives: Lives, moves: bool) -> TensorPlacement:
    """Stays, copies and algorithms of ``lives``: every kernel runs the fastest algorithm whose workspace fits. O(uses + stays)."""
    stays: list[Stay] = []
    copies: list[Move] = []
    fast, staying, tail = lives.fast.tolist(), lives.stays.tolist(), lives.tail.tolist()
    for t in range(times.tensors):
        begin, end = int(times.first[t]), int(times.first[t + 1])
        if begin < end:
            stays += [Stay(t, start, stop) for start, stop in _spans(times, t, fast[begin:end], staying[begin:end], tail[t])]
            if moves:
                copies += _copies(times, t, fast[begin:end], staying[begin:end], tail[t])
    # Copies that make room come before copies that need it.
    copies.sort(key=lambda move: (move.start, move.to_fast, move.tensor))
    placed = TensorPlacement(tuple(stays), tuple(copies), ())
    return TensorPlacement(placed.stays, placed.moves, _algorithms(sequence, times, lives, placed))


def least_workspace(times: Lifetimes) -> Ints:
    """Bytes of the smallest workspace of each kernel, shape (kernels,)."""
    least: Ints = np.minimum.reduceat(times.workspace, times.first_algorithm[:-1])
    return least


def least_seconds(times: Lifetimes) -> Floats:
    """Arithmetic of the fastest algorithm of each kernel, shape (kernels,)."""
    least: Floats = np.minimum.reduceat(times.seconds, times.first_algorithm[:-1])
    return least


def placed_lives(times: Lifetimes, fast: NDArray[np.bool_]) -> Lives:
    """Lives of tensors that never move, from the place of each use."""
    there = fast.astype(np.uint8)
    stays, tail = there.copy(), np.zeros(times.tensors, dtype=np.uint8)
    used = np.flatnonzero(np.diff(times.first) > 0)
    begins, life = times.first[used], times.life[used]
    tail[used] = there[begins] * ((life == Life.CYCLIC) | (life == Life.OUTPUT))
    stays[begins[(life == Life.INNER) | (life == Life.OUTPUT)]] = 0
    return Lives(there, stays, tail)


def spans(times: Lifetimes, lives: Lives, t: int) -> list[tuple[int, int]]:
    """Spans of kernels, half open, during which tensor ``t`` is in the fast memory."""
    mine = slice(int(times.first[t]), int(times.first[t + 1]))
    if mine.start == mine.stop:
        return []
    return _spans(times, t, lives.fast[mine].tolist(), lives.stays[mine].tolist(), int(lives.tail[t]))


def used_bytes(times: Lifetimes, placement: TensorPlacement) -> Ints:
    """Bytes that tensors take in the fast memory while each kernel runs, shape (kernels,)."""
    change = np.zeros(times.kernels + 1, dtype=np.int64)
    for stay in placement.stays:
        change[stay.start] += times.size[stay.tensor]
        change[stay.end] -= times.size[stay.tensor]
    return change.cumsum()[:-1]


def total_seconds(sequence: KernelSequence, times: Lifetimes, lives: Lives, placement: TensorPlacement) -> float:
    """Seconds of all kernels, one after another, with the copies between them."""
    slow, bounds = (lives.fast[times.use] == 0).tolist(), times.first_operand.tolist()
    kernels = zip(sequence.kernels, placement.algorithms, bounds, bounds[1:], strict=False)
    seconds = [kernel.seconds(slow[begin:end], algorithm) for kernel, algorithm, begin, end in kernels]
    return math.fsum(seconds + [float((times.to_fast if move.to_fast else times.to_slow)[move.tensor]) for move in placement.moves])


def _offsets(lengths: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _spans(times: Lifetimes, t: int, fast: list[int], stays: list[int], tail: int) -> list[tuple[int, int]]:
    """Spans of kernels with the tensor in the fast memory: adjacent ones are one stay unless the tensor left in between."""
    spans: list[tuple[int, int]] = []
    kernel = times.kernel[times.first[t] : times.first[t + 1]].tolist()
    life = times.life[t]
    for i, k in enumerate(kernel):
        if not fast[i]:
            continue
        if stays[i] and i > 0:
            spans[-1] = (spans[-1][0], k + 1)
        else:
            spans.append((0 if stays[i] and life in (Life.CYCLIC, Life.INPUT) else k, k + 1))
    if tail:
        spans[-1] = (spans[-1][0], times.kernels)
    return spans


def _copies(times: Lifetimes, t: int, fast: list[int], stays: list[int], tail: int) -> list[Move]:
    """Copies of one tensor's life."""
    begin, end = int(times.first[t]), int(times.first[t + 1])
    kernel, life = times.kernel[begin:end].tolist(), times.life[t]
    reads, writes = times.reads[begin:end].tolist(), times.writes[begin:end].tolist()
    copies: list[Move] = []
    dirty = bool(life == Life.INPUT and stays[0])
    # Going round once finds the state in which a weight begins.
    for _ in range(2 if life == Life.CYCLIC else 1):
        copies = []
        for i, k in enumerate(kernel):
            if not stays[i]:
                if dirty and (reads[i] or (i == 0 and life == Life.CYCLIC)):
                    left = kernel[i - 1] + 1
                    copies.append(Move(t, False, left, left))
                if fast[i] and reads[i]:
                    copies.append(Move(t, True, k, k))
                dirty = False
            dirty |= bool(fast[i] and writes[i])
    if life == Life.OUTPUT and dirty and not tail:
        copies.append(Move(t, False, kernel[-1] + 1, kernel[-1] + 1))
    return copies


def _algorithms(sequence: KernelSequence, times: Lifetimes, lives: Lives, placement: TensorPlacement) -> tuple[int, ...]:
    free = (times.limit - used_bytes(times, placement)).tolist()
    bounds, slow = times.first_operand.tolist(), (lives.fast[times.use] == 0).tolist()
    chosen = [0] * times.kernels
    for k, kernel in enumerate(sequence.kernels):
        if len(kernel.algorithms) > 1:
            in_slow = slow[bounds[k] : bounds[k + 1]]
            fitting = [a for a, algorithm in enumerate(kernel.algorithms) if algorithm.workspace <= free[k]]
            chosen[k] = min(fitting, key=lambda a: (kernel.seconds(in_slow, a), kernel.algorithms[a].workspace, a))
    return tuple(chosen)
