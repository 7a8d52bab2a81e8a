"""The placement that takes the least fast memory, and the error that names the kernel if even that
exceeds its limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.errors import CapacityError
from loadmaster.placement.autotm.sequence_arrays import (
    SequenceArrays,
    TensorPaths,
    least_workspace,
    placed_paths,
)
from loadmaster.placement.sequence import KernelSequence

_NAMED = 5
"""Tensors that an error names before it only counts."""


def least_paths(sequence: KernelSequence, arrays: SequenceArrays, moves: bool) -> TensorPaths:
    """Find paths in which each kernel has in the fast memory only operands that it cannot use
    elsewhere.

    Where tensors may not move, one that must be there once is there always. Raises `CapacityError`
    where even that exceeds a limit.
    """
    must = ~np.isfinite(arrays.slow)
    workspace = least_workspace(arrays)
    for measured in _measured_kernels(arrays):
        must[measured.uses], workspace[measured.kernel] = _least_combination(arrays, measured)
    paths = _paths(arrays, must, moves)
    used = _used(arrays, paths)
    short = np.flatnonzero(used + workspace > arrays.limit)
    if len(short):
        raise CapacityError(
            _complaint(
                sequence,
                arrays,
                paths,
                workspace,
                int(short[np.argmax((used + workspace - arrays.limit)[short])]),
            )
        )
    return paths


class _Measured(NamedTuple):
    """A kernel's seconds, shape (algorithms, combinations of places of the ``tabled`` uses), and
    its algorithms' workspaces in bytes."""

    kernel: int
    uses: Ints
    tabled: Ints
    table: Floats
    workspace: Ints


def _measured_kernels(arrays: SequenceArrays) -> Iterator[_Measured]:
    for k in np.flatnonzero(np.diff(arrays.first_entry)).tolist():
        uses = arrays.use[arrays.first_operand[k] : arrays.first_operand[k + 1]]
        workspace = arrays.workspace[arrays.first_algorithm[k] : arrays.first_algorithm[k + 1]]
        table = arrays.table[arrays.first_entry[k] : arrays.first_entry[k + 1]].reshape(
            len(workspace), -1
        )
        yield _Measured(k, uses, uses[: table.shape[1].bit_length() - 1], table, workspace)


def _least_combination(arrays: SequenceArrays, measured: _Measured) -> tuple[Mask, int]:
    """Which operands of a measured kernel are fast in the possible combination that takes the least
    memory, and its workspace."""
    _, uses, tabled, table, workspace = measured
    index = np.arange(table.shape[1])
    fast = ((index[:, None] >> np.arange(len(tabled))) & 1) == 0
    bytes_ = fast @ arrays.size[arrays.tensor[tabled]]
    total = np.where(np.isfinite(table), bytes_ + workspace[:, None], np.iinfo(np.int64).max)
    a, best = np.unravel_index(int(total.argmin()), total.shape)
    must = np.zeros(len(uses), dtype=bool)
    must[: len(tabled)] = fast[best]
    return must, int(workspace[a])


def _possible(measured: _Measured, paths: TensorPaths) -> Mask:
    """Which algorithms of a kernel are possible with its operands where paths have them."""
    in_slow = paths.fast[measured.tabled] == 0
    return np.isfinite(measured.table[:, int((in_slow << np.arange(len(in_slow))).sum())])


def disagreement(sequence: KernelSequence, arrays: SequenceArrays, paths: TensorPaths) -> str:
    """Why paths in which nothing moves do not do, although there is room: the kernel whose operands
    are not where it can use them."""
    measured = next(each for each in _measured_kernels(arrays) if not _possible(each, paths).any())
    operands = [
        (sequence.tensors[int(arrays.tensor[use])].name, paths.fast[use] > 0)
        for use in measured.tabled
    ]
    places = ", ".join(
        f"{name!r} in the {'fast' if fast else 'slow'} one" for name, fast in operands
    )
    return (
        f"kernel {sequence.kernels[measured.kernel].name!r} cannot run with its tensors in the"
        f" memories in which other kernels need them ({places}) and may take"
        f" {int(arrays.limit[measured.kernel])} bytes: allow more fast memory, or let tensors move"
        " (mode sync)"
    )


def _paths(arrays: SequenceArrays, must: Mask, moves: bool) -> TensorPaths:
    if not moves:
        always = np.zeros(arrays.tensor_count, dtype=bool)
        always[arrays.tensor[must]] = True
        return placed_paths(arrays, always[arrays.tensor])
    nowhere = np.zeros(len(must), dtype=np.uint8)
    return TensorPaths(
        must.astype(np.uint8), nowhere, np.zeros(arrays.tensor_count, dtype=np.uint8)
    )


def _stays(arrays: SequenceArrays, paths: TensorPaths) -> tuple[Ints, Ints, Ints]:
    """Tensors, first kernels and ends of stays that need not be merged: at uses, in the gaps before
    them, and at the end."""
    at, gaps = np.flatnonzero(paths.fast), np.flatnonzero(paths.stays)
    first = np.isin(gaps, arrays.first)
    since = np.where(first, 0, arrays.kernel[gaps - 1] + 1)
    ends = np.flatnonzero(paths.tail)
    last = arrays.kernel[arrays.first[ends + 1] - 1] + 1
    return (
        np.concatenate([arrays.tensor[at], arrays.tensor[gaps], ends]),
        np.concatenate([arrays.kernel[at], since, last]),
        np.concatenate(
            [arrays.kernel[at] + 1, arrays.kernel[gaps], np.full(len(ends), arrays.kernel_count)]
        ),
    )


def _used(arrays: SequenceArrays, paths: TensorPaths) -> Ints:
    """Bytes that tensors take while each kernel runs."""
    change = np.zeros(arrays.kernel_count + 1, dtype=np.int64)
    tensor, start, end = _stays(arrays, paths)
    np.add.at(change, start, arrays.size[tensor])
    np.add.at(change, end, -arrays.size[tensor])
    return change.cumsum()[:-1]


def _complaint(
    sequence: KernelSequence, arrays: SequenceArrays, paths: TensorPaths, workspace: Ints, k: int
) -> str:
    tensor, start, end = _stays(arrays, paths)
    there = tensor[(start <= k) & (k < end)].tolist()
    there.sort(key=lambda t: (-int(arrays.size[t]), t))
    largest = ", ".join(
        f"{sequence.tensors[t].name!r} ({int(arrays.size[t])} bytes)" for t in there[:_NAMED]
    )
    more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    needed = int(arrays.size[there].sum()) + int(workspace[k])
    what = f"its tensors: {largest}{more}" if there else "no tensors"
    return (
        f"kernel {sequence.kernels[k].name!r} needs {needed} bytes of fast memory and may take"
        f" {int(arrays.limit[k])}: a workspace of {int(workspace[k])} bytes, and {what}: allow"
        f" {needed - int(arrays.limit[k])} bytes more, or split the kernel"
    )
