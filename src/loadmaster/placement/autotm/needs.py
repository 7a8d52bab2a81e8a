"""What every kernel cannot do without: the placement that takes the least fast memory, and who is to blame if that is too much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.errors import CapacityError
from loadmaster.placement.autotm.sequence_arrays import Lifetimes, Lives, least_workspace, placed_lives, spans
from loadmaster.placement.sequence import KernelSequence

_NAMED = 5


def least_lives(sequence: KernelSequence, times: Lifetimes, moves: bool) -> Lives:
    """Lives in which each kernel finds in the fast memory only what it must.

    Where tensors may not move, one that must be there once is there always. Raises `CapacityError` where even that exceeds a limit.
    """
    must = ~np.isfinite(times.slow)
    workspace = least_workspace(times)
    for measured in _measured_kernels(times):
        must[measured.uses], workspace[measured.kernel] = _least_combination(times, measured)
    lives = _lives(times, must, moves)
    used = _used(times, lives)
    short = np.flatnonzero(used + workspace > times.limit)
    if len(short):
        raise CapacityError(_complaint(sequence, times, lives, workspace, int(short[np.argmax((used + workspace - times.limit)[short])])))
    return lives


class _Measured(NamedTuple):
    """A kernel's seconds, shape (algorithms, combinations of places of the ``tabled`` uses), and its algorithms' workspaces in bytes."""

    kernel: int
    uses: NDArray[np.int64]
    tabled: NDArray[np.int64]
    table: NDArray[np.float64]
    workspace: NDArray[np.int64]


def _measured_kernels(times: Lifetimes) -> Iterator[_Measured]:
    for k in np.flatnonzero(np.diff(times.first_entry)).tolist():
        uses = times.use[times.first_operand[k] : times.first_operand[k + 1]]
        workspace = times.workspace[times.first_algorithm[k] : times.first_algorithm[k + 1]]
        table = times.table[times.first_entry[k] : times.first_entry[k + 1]].reshape(len(workspace), -1)
        yield _Measured(k, uses, uses[: table.shape[1].bit_length() - 1], table, workspace)


def _least_combination(times: Lifetimes, measured: _Measured) -> tuple[NDArray[np.bool_], int]:
    """Which operands of a measured kernel are fast in the possible combination that takes the least memory, and its workspace."""
    _, uses, tabled, table, workspace = measured
    index = np.arange(table.shape[1])
    fast = ((index[:, None] >> np.arange(len(tabled))) & 1) == 0
    bytes_ = fast @ times.size[times.tensor[tabled]]
    total = np.where(np.isfinite(table), bytes_ + workspace[:, None], np.iinfo(np.int64).max)
    a, best = np.unravel_index(int(total.argmin()), total.shape)
    must = np.zeros(len(uses), dtype=bool)
    must[: len(tabled)] = fast[best]
    return must, int(workspace[a])


def fits(times: Lifetimes, lives: Lives) -> bool:
    """Whether every kernel has a combination for where its operands are, and room; for tensors that either never move or always do."""
    workspace, must = least_workspace(times), ~np.isfinite(times.slow)
    for k, uses, tabled, table, workspaces in _measured_kernels(times):
        must[uses] = False
        possible = np.isfinite(table[:, int(((lives.fast[tabled] == 0) << np.arange(len(tabled))).sum())])
        if not possible.any():
            return False
        workspace[k] = workspaces[possible].min()
    return bool((lives.fast[must] > 0).all()) and bool((_used(times, lives) + workspace <= times.limit).all())


def _lives(times: Lifetimes, must: NDArray[np.bool_], moves: bool) -> Lives:
    if not moves:
        always = np.zeros(times.tensors, dtype=bool)
        always[times.tensor[must]] = True
        return placed_lives(times, always[times.tensor])
    nowhere = np.zeros(len(must), dtype=np.uint8)
    return Lives(must.astype(np.uint8), nowhere, np.zeros(times.tensors, dtype=np.uint8))


def _used(times: Lifetimes, lives: Lives) -> NDArray[np.int64]:
    """Bytes that tensors take while each kernel runs, for lives that either never stay in a gap or always do."""
    change = np.zeros(times.kernels + 1, dtype=np.int64)
    for t in np.unique(times.tensor[lives.fast > 0]).tolist():
        for start, end in spans(times, lives, t):
            change[start] += times.size[t]
            change[end] -= times.size[t]
    return change.cumsum()[:-1]


def _complaint(sequence: KernelSequence, times: Lifetimes, lives: Lives, workspace: NDArray[np.int64], k: int) -> str:
    there = [t for t in range(times.tensors) if any(start <= k < end for start, end in spans(times, lives, t))]
    there.sort(key=lambda t: (-int(times.size[t]), t))
    largest = ", ".join(f"{sequence.tensors[t].name!r} ({int(times.size[t])} bytes)" for t in there[:_NAMED])
    more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    needed = int(times.size[there].sum()) + int(workspace[k])
    what = f"its tensors: {largest}{more}" if there else "no tensors"
    return (
        f"kernel {sequence.kernels[k].name!r} needs {needed} bytes of fast memory and may take {int(times.limit[k])}: "
        f"a workspace of {int(workspace[k])} bytes, and {what}: allow {needed - int(times.limit[k])} bytes more, or split the kernel"
    )
