"""Paths of tensors through AutoTM's flow networks (ASPLOS 2020, section 4.2), in arrays.

A tensor's reference points are its uses. At each use it is in the fast memory or in the slow one,
and in the gap before each use it stays in the fast memory or not: that is its *path*. The copies
follow from it, because where copies block computation they cost the same at any time, so that
leaving right after a use and returning right before one is never worse:

- leaving costs a copy unless a slow copy is valid, or the next use overwrites the tensor without
  reading it, or nobody uses it again (weights and outputs must be somewhere at the end);
- returning costs a copy unless the use overwrites the tensor without reading it, and leaves the
  slow copy valid;
- a use that writes the tensor in the fast memory makes the slow copy invalid.

The gap before the first use is the creation for what a kernel makes, the time before it for inputs,
and for weights the time from their last use round the end of the step to their first: they end as
they begin. Outputs have one more gap, to the end.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Bits, Floats, Ints, Mask, column_of
from loadmaster.placement.sequence import KernelSequence, StoredKind

TensorPaths = _native.TensorPaths


class LiveRange(IntEnum):
    """The kind of a tensor's live range: how it begins and ends."""

    CYCLIC = 0
    INPUT = 1
    INNER = 2
    OUTPUT = 3


_LIVE_RANGE = {
    StoredKind.WEIGHT: LiveRange.CYCLIC,
    StoredKind.INPUT: LiveRange.INPUT,
    StoredKind.INTERMEDIATE: LiveRange.INNER,
    StoredKind.OUTPUT: LiveRange.OUTPUT,
}


@dataclass(frozen=True, eq=False)
class SequenceArrays:
    """A kernel sequence as arrays. Uses are numbered tensor by tensor, operands and algorithms
    kernel by kernel.

    Attributes
    ----------
    first, live_range, size, bytes, to_fast, to_slow
        Of each tensor: its first use (one entry more than tensors), `LiveRange`, bytes with and
        without padding, seconds of a copy each way.
    kernel, operand, reads, writes, fast, slow, tensor, following
        Of each use: its kernel, operand number, whether it needs the old bytes and changes them,
        seconds in either memory, its tensor, and the use after it (round the end for weights;
        itself if there is none).
    first_operand, use, first_algorithm, seconds, workspace, first_entry, table
        Of kernels: operands with their uses, algorithms, and tables of measured times where there
        are any.
    limit
        Bytes of fast memory while each kernel runs.
    """

    first: Ints
    live_range: Bits
    size: Ints
    bytes: Ints
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
    def tensor_count(self) -> int:
        """Number of tensors."""
        return len(self.size)

    @property
    def kernel_count(self) -> int:
        """Number of kernels."""
        return len(self.limit)

    @cached_property
    def problem(self) -> _native.PlacementProblem:
        """The sequence as native code searches it, checked once."""
        return self.problem_with(self.to_fast[self.tensor], self.to_slow[self.tensor])

    @cached_property
    def last_write(self) -> Ints:
        """The position after the last write up to each use, from which on the tensor may be copied
        out; 0 for inputs at first, which are dirty, and -1 for writes of an earlier step."""
        written = np.where(self.writes > 0, self.kernel + 1, -1)
        supplied = (self.live_range == LiveRange.INPUT)[self.tensor]
        base = self.tensor * (self.kernel_count + 2)
        last: Ints = (
            np.maximum.accumulate(base + np.where(supplied, np.maximum(written, 0), written)) - base
        )
        return np.maximum(last, -1)

    @cached_property
    def last_write_before(self) -> Ints:
        """The same before each use, from which on the tensor may be copied in for it."""
        begins = self.first[:-1][np.diff(self.first) > 0]
        before = np.append(-1, self.last_write[:-1])[: len(self.kernel)]
        before[begins] = np.where(self.live_range[self.tensor[begins]] == LiveRange.INPUT, 0, -1)
        return before

    @property
    def measured_kernels(self) -> list[int]:
        """The kernels with tables of measured times."""
        measured: list[int] = np.flatnonzero(np.diff(self.first_entry)).tolist()
        return measured

    def workspaces_of(self, kernel: int) -> Ints:
        """Bytes of the workspace of each algorithm of a kernel."""
        return self.workspace[self.first_algorithm[kernel] : self.first_algorithm[kernel + 1]]

    def measured(self, kernel: int) -> tuple[Ints, Floats]:
        """The uses that the table of a measured kernel tells apart, and its seconds, shape
        (algorithms, combinations of their places)."""
        table = self.table[self.first_entry[kernel] : self.first_entry[kernel + 1]]
        table = table.reshape(len(self.workspaces_of(kernel)), -1)
        first = self.first_operand[kernel]
        return self.use[first : first + table.shape[1].bit_length() - 1], table

    def problem_with(self, to_fast: Floats, to_slow: Floats) -> _native.PlacementProblem:
        """Return the problem with these seconds for a copy in before each use and a copy out after
        it, shape (uses,) each."""
        own = ("bytes", "tensor", "following", "to_fast", "to_slow")
        names = [each.name for each in fields(self) if each.name not in own]
        arrays = {name: getattr(self, name) for name in names}
        return _native.PlacementProblem(to_fast=to_fast, to_slow=to_slow, **arrays)


def sequence_arrays(sequence: KernelSequence, limits: Ints) -> SequenceArrays:
    """Make the arrays of ``sequence`` under ``limits``, shape (kernels,). O(operands)."""
    kernels, tensors, link = sequence.kernels, sequence.tensors, sequence.link
    operands = [operand for kernel in kernels for operand in kernel.operands]
    first_operand = _offsets([len(kernel.operands) for kernel in kernels])
    owner = column_of(operands, "tensor", np.int64)
    order = np.argsort(owner, kind="stable")
    use = np.empty(len(operands), dtype=np.int64)
    use[order] = np.arange(len(operands))
    first = np.searchsorted(owner[order], np.arange(len(tensors) + 1)).astype(np.int64)
    live_range = np.array([_LIVE_RANGE[tensor.kind] for tensor in tensors], dtype=np.uint8)
    following = np.arange(1, len(operands) + 1)
    used = np.flatnonzero(np.diff(first))
    following[first[used + 1] - 1] = np.where(
        live_range[used] == LiveRange.CYCLIC, first[used], first[used + 1] - 1
    )
    kernel_of = np.repeat(np.arange(len(kernels)), np.diff(first_operand))
    bytes_ = column_of(tensors, "bytes", np.int64)
    algorithms = [algorithm for kernel in kernels for algorithm in kernel.algorithms]
    tables = [np.ravel(kernel.measured or ()) for kernel in kernels]
    return SequenceArrays(
        first=first,
        live_range=live_range,
        size=sequence.sizes,
        bytes=bytes_,
        to_fast=bytes_ / link.to_fast,
        to_slow=bytes_ / link.to_slow,
        kernel=kernel_of[order],
        operand=order,
        reads=column_of(operands, "read", np.uint8)[order],
        writes=column_of(operands, "write", np.uint8)[order],
        fast=column_of(operands, "fast_seconds")[order],
        slow=column_of(operands, "slow_seconds")[order],
        first_operand=first_operand,
        use=use,
        first_algorithm=_offsets([len(kernel.algorithms) for kernel in kernels]),
        seconds=column_of(algorithms, "seconds"),
        workspace=column_of(algorithms, "workspace", np.int64),
        first_entry=_offsets([len(table) for table in tables]),
        table=np.concatenate([np.empty(0), *tables]).astype(np.float64),
        limit=np.ascontiguousarray(limits, dtype=np.int64),
        tensor=owner[order],
        following=following,
    )


def fast_in(combinations: int) -> Mask:
    """Which of the operands that a table tells apart are fast in each combination of their places,
    shape (combinations, operands)."""
    operands = np.arange(combinations.bit_length() - 1)
    fast: Mask = (np.arange(combinations)[:, None] >> operands) & 1 == 0
    return fast


def least_workspace(arrays: SequenceArrays) -> Ints:
    """Bytes of the smallest workspace of each kernel, shape (kernels,)."""
    least: Ints = np.minimum.reduceat(arrays.workspace, arrays.first_algorithm[:-1])
    return least


def least_seconds(arrays: SequenceArrays) -> Floats:
    """Seconds of arithmetic of the fastest algorithm of each kernel, shape (kernels,)."""
    least: Floats = np.minimum.reduceat(arrays.seconds, arrays.first_algorithm[:-1])
    return least


def placed_paths(arrays: SequenceArrays, fast: Mask) -> TensorPaths:
    """Paths of tensors that never move, from the place of each use."""
    there = fast.astype(np.uint8)
    stays, tail = there.copy(), np.zeros(arrays.tensor_count, dtype=np.uint8)
    used = np.flatnonzero(np.diff(arrays.first) > 0)
    begins, live_range = arrays.first[used], arrays.live_range[used]
    tail[used] = there[begins] * (
        (live_range == LiveRange.CYCLIC) | (live_range == LiveRange.OUTPUT)
    )
    stays[begins[(live_range == LiveRange.INNER) | (live_range == LiveRange.OUTPUT)]] = 0
    return TensorPaths(there, stays, tail)


def _offsets(lengths: list[int]) -> Ints:
    """Return the first index of each of several consecutive lists, and the end."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
