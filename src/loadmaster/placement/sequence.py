"""The problem of tensor placement: kernels in the order in which they run, the tensors that they
use, and two memories.

This is the problem of AutoTM (ASPLOS 2020): every tensor is in the fast memory, the slow one, or
moves between them, and every kernel's time depends on where its operands are. Nothing here knows an
operator's type: costs are seconds and bytes.

A *tensor* is one storage: views, aliases and in-place results of it are uses of the same tensor.
Position ``k`` of time is the instant before kernel ``k``; a lifetime is half open, ``[start,
end)``, in kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.errors import PlacementError
from loadmaster.core.provenance import Provenance

LONGEST = 1e14
"""The most seconds of a kernel or a copy, so that the whole numbers in which bounds are proven do
not overflow."""
ROUNDING = 1e-12
"""Relative error at most of a sum of seconds, or of the seconds of a piece of a tensor."""
MOST_TABLED = 10
"""The most operands whose place a table of measured times distinguishes; it has two to that power
entries."""


class StoredKind(StrEnum):
    """The kind of a tensor, which decides its lifetime."""

    WEIGHT = "weight"
    """Parameters, optimiser state, running statistics: exist before the first kernel and after the
    last one. Steps repeat, so a weight ends where it began: the same memory, and a slow copy is
    valid at the start only if it is at the end. What is overwritten before it is read is no weight
    but an output: its old bytes do not matter."""
    INPUT = "input"
    """Supplied by the caller, in the memory that the placement chooses: alive from the first kernel
    to its last use."""
    INTERMEDIATE = "intermediate"
    """Alive from the kernel that writes it first to its last use."""
    OUTPUT = "output"
    """Returned to the caller, in the memory that the placement chooses: alive from the kernel that
    writes it first to the end."""


class StoredTensor(NamedTuple):
    """One storage of ``bytes`` bytes."""

    name: str
    bytes: int
    kind: StoredKind = StoredKind.INTERMEDIATE


@dataclass(frozen=True, slots=True)
class KernelOperand:
    """A kernel's use of a tensor.

    It takes ``fast_seconds`` of the fast memory's time where the tensor is there, else
    ``slow_seconds`` of the slow memory's: infinite if the kernel cannot use it there. An operand
    that is both read and written is updated in place. Kernels that only ``write`` need not find the
    tensor's old bytes, and leave no valid copy of them anywhere else.
    """

    tensor: int
    read: bool
    write: bool
    fast_seconds: float = 0.0
    slow_seconds: float = 0.0


class Algorithm(NamedTuple):
    """One way to compute a kernel: ``seconds`` of arithmetic, and ``workspace`` bytes of fast
    memory while it runs."""

    name: str
    seconds: float
    workspace: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """One step of the computation; each tensor appears in at most one operand.

    Without ``measured``, arithmetic and both memories work at the same time: the kernel takes as
    long as the slowest of the algorithm, the fast memory (the sum over operands there) and the slow
    memory (likewise). ``measured``, if there, holds for each algorithm the seconds for every
    combination of places: entry ``i`` has operand ``o`` in the slow memory where bit ``o`` of ``i``
    is set; operands beyond the first ``MOST_TABLED`` do not matter then. Combinations that are
    impossible are infinite.
    """

    name: str
    kind: str
    operands: tuple[KernelOperand, ...]
    algorithms: tuple[Algorithm, ...]
    measured: tuple[tuple[float, ...], ...] | None = None

    def seconds(self, in_slow: Sequence[bool], algorithm: int = 0) -> float:
        """Seconds with each operand in the slow memory or not. O(operands)."""
        # As `time_of` in src/native/placement/search.cpp; tests/test_twins.py holds the two
        # together.
        if self.measured is not None:
            return self.measured[algorithm][
                sum(slow << o for o, slow in enumerate(in_slow[:MOST_TABLED]))
            ]
        fast = math.fsum(
            o.fast_seconds for o, slow in zip(self.operands, in_slow, strict=True) if not slow
        )
        slow_ = math.fsum(
            o.slow_seconds for o, slow in zip(self.operands, in_slow, strict=True) if slow
        )
        return max(self.algorithms[algorithm].seconds, fast, slow_)

    def seconds_within(self, slow: bool, algorithm: int = 0) -> float:
        """Seconds with all operands in the slow memory, or all in the fast one."""
        return self.seconds([slow] * len(self.operands), algorithm)


@dataclass(frozen=True)
class CopyLink:
    """Bandwidths of copies in bytes/s: ``to_fast`` and ``to_slow`` when they block computation, the
    others when they overlap it.

    If ``shared``, both directions take turns on one link: a second spent reading is not there for
    writing.
    """

    to_fast: float
    to_slow: float
    asynchronous_to_fast: float
    asynchronous_to_slow: float
    shared: bool = False


@dataclass(frozen=True)
class KernelSequence:
    """Kernels in execution order, tensors by number, the copy link, and the fast memory's alignment
    in bytes.

    Where ``page`` is not 0, a tensor may lie partly in either memory, in whole pages of so many
    bytes: a multiple of the alignment. ``notes`` are one-line remarks; ``costs`` say what the times
    of kernels come from, and of how many. Raises
    :class:`~loadmaster.core.errors.PlacementError` for what is malformed.
    """

    name: str
    tensors: tuple[StoredTensor, ...]
    kernels: tuple[Kernel, ...]
    link: CopyLink
    alignment: int = 1
    notes: tuple[str, ...] = ()
    costs: tuple[Provenance, ...] = ()
    page: int = 0

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def uses(self) -> list[list[tuple[int, KernelOperand]]]:
        """The uses of each tensor in order, as pairs of kernel number and operand."""
        uses: list[list[tuple[int, KernelOperand]]] = [[] for _ in self.tensors]
        for k, kernel in enumerate(self.kernels):
            for operand in kernel.operands:
                uses[operand.tensor].append((k, operand))
        return uses

    @cached_property
    def lifetimes(self) -> Ints:
        """First kernel and end (exclusive) of every tensor's life, shape (tensors, 2); ``[0, 0)``
        for one that is never used."""
        last = len(self.kernels)
        spans = np.zeros((len(self.tensors), 2), dtype=np.int64)
        for t, (tensor, uses) in enumerate(zip(self.tensors, self.uses, strict=True)):
            if tensor.kind is StoredKind.WEIGHT:
                spans[t] = 0, last
            elif uses:
                first = 0 if tensor.kind is StoredKind.INPUT else uses[0][0]
                spans[t] = first, last if tensor.kind is StoredKind.OUTPUT else uses[-1][0] + 1
        return spans

    @cached_property
    def sizes(self) -> Ints:
        """Bytes of every tensor, rounded up to the alignment: what it takes in the fast memory."""
        return np.array(
            [-(-tensor.bytes // self.alignment) * self.alignment for tensor in self.tensors],
            dtype=np.int64,
        )

    def live_bytes(self, workspace: bool = True) -> Ints:
        """Bytes that live while each kernel runs, with everything in the fast memory and each
        kernel's first algorithm."""
        start, end = self.lifetimes.T
        live = bytes_during(len(self.kernels), start, end, self.sizes)
        if workspace:
            live += self.workspaces([0] * len(self.kernels))
        return live

    def useful_bytes(self, limits: Ints) -> Ints:
        """Bytes of one more GiB of fast memory that each kernel can use beyond its limit."""
        workspace = [max(each.workspace for each in k.algorithms) for k in self.kernels]
        most = self.live_bytes(workspace=False) + np.array(workspace, dtype=np.int64)
        useful: Ints = np.clip(most - limits, 0, 2**30)
        return useful

    def workspaces(self, algorithms: Sequence[int]) -> Ints:
        """Bytes of every kernel's workspace with these algorithms, shape (kernels,)."""
        rows = zip(self.kernels, algorithms, strict=True)
        return np.array([kernel.algorithms[a].workspace for kernel, a in rows], dtype=np.int64)

    @property
    def peak_bytes(self) -> int:
        """Peak of the live bytes when everything is fast, which ``--fast 100%`` stands for."""
        return int(self.live_bytes().max(initial=0))

    @cached_property
    def least_seconds(self) -> float:
        """Seconds that all kernels take at least, wherever their operands are."""
        return math.fsum(map(_least_seconds, self.kernels))

    def seconds(self, in_slow: bool) -> float:
        """Return the seconds of all kernels with every operand in one memory; infinite if some
        cannot run there."""
        return math.fsum(kernel.seconds_within(in_slow) for kernel in self.kernels)


def bytes_during(kernels: int, start: Ints, end: Ints, size: Ints) -> Ints:
    """Bytes that are taken while each kernel runs, shape (kernels,), where ``size[i]`` are taken
    from kernel ``start[i]`` until ``end[i]``."""
    change = np.zeros(kernels + 1, dtype=np.int64)
    np.add.at(change, start, size)
    np.add.at(change, end, -size)
    return change.cumsum()[:-1]


def _least_seconds(kernel: Kernel) -> float:
    """Seconds that a kernel takes at least, wherever its operands are.

    Unless it was measured: both memories work at the same time, and an operand in the slow one
    takes at least 1 / r times as long as in the fast one, with r the largest ratio of the two. So t
    seconds are enough for t (1 + r) seconds' worth of the fast memory at most.
    """
    if kernel.measured is not None:
        return min(map(min, kernel.measured))
    fast = math.fsum(operand.fast_seconds for operand in kernel.operands)
    ratios = [
        o.fast_seconds / o.slow_seconds if o.slow_seconds else math.inf
        for o in kernel.operands
        if o.fast_seconds
    ]
    return max(
        min(algorithm.seconds for algorithm in kernel.algorithms),
        fast / (1 + max(ratios, default=0.0)),
    )


def must_be_fast(sequence: KernelSequence) -> list[set[int]]:
    """Return for every kernel the tensors that it cannot use in the slow memory; of a kernel that
    was measured, with its first algorithm. O(operands)."""
    needed = []
    for kernel in sequence.kernels:
        # In an index of the table bit o is operand o; operands beyond its bits are not told apart.
        table = kernel.measured and kernel.measured[0]
        needed.append(
            {
                operand.tensor
                for o, operand in enumerate(kernel.operands)
                if math.isinf(table[(1 << o) % len(table)] if table else operand.slow_seconds)
            }
        )
    return needed


def least_bytes(sequence: KernelSequence) -> Ints:
    """Return the bytes of fast memory without which each kernel cannot run, shape (kernels,)."""
    return np.array(
        [
            sum(int(sequence.sizes[t]) for t in needed)
            + min(algorithm.workspace for algorithm in kernel.algorithms)
            for kernel, needed in zip(sequence.kernels, must_be_fast(sequence), strict=True)
        ],
        dtype=np.int64,
    )


def check(sequence: KernelSequence) -> None:
    """Raise `PlacementError` for sizes, times and references that make no sense. O(operands)."""
    rates = {name: rate for name, rate in vars(sequence.link).items() if name != "shared"}
    for name, rate in rates.items():
        if not (math.isfinite(rate) and rate > 0):
            raise PlacementError(
                f"copy bandwidth {name} is {rate}: give a finite number of bytes/s above zero"
            )
    if not 1 <= sequence.alignment < 2**40:
        raise PlacementError(
            f"{sequence.name}: alignment is {sequence.alignment}: give a whole number from 1 to"
            " 2^40"
        )
    if not 0 <= sequence.page < 2**40 or sequence.page % sequence.alignment:
        raise PlacementError(
            f"{sequence.name}: page is {sequence.page}: give a multiple of the alignment,"
            f" {sequence.alignment}, up to 2^40, or 0 for tensors that lie whole in one memory"
        )
    for tensor in sequence.tensors:
        if not 0 <= tensor.bytes < WHOLE_LIMIT:
            raise PlacementError(
                f"tensor {tensor.name!r} has {tensor.bytes} bytes: sizes lie between 0 and 2^62"
            )
    if sum(sequence.sizes.tolist()) >= WHOLE_LIMIT:
        raise PlacementError(
            f"{sequence.name}: the tensors together, padded to the alignment, exceed 2^62 bytes"
        )
    largest = max((tensor.bytes for tensor in sequence.tensors), default=0)
    slowest = min(rates.values())
    if largest / slowest > LONGEST:
        raise PlacementError(
            f"{sequence.name}: a copy of {largest} bytes at {slowest} bytes/s takes over"
            f" {LONGEST:g} s: check both"
        )
    touched: set[int] = set()
    written: set[int] = {
        t
        for t, tensor in enumerate(sequence.tensors)
        if tensor.kind in (StoredKind.WEIGHT, StoredKind.INPUT)
    }
    for kernel in sequence.kernels:
        _check_kernel(kernel, sequence, written)
        for operand in kernel.operands:
            tensor = sequence.tensors[operand.tensor]
            if (
                tensor.kind is StoredKind.WEIGHT
                and operand.tensor not in touched
                and not operand.read
            ):
                raise PlacementError(
                    f"kernel {kernel.name!r} overwrites weight {tensor.name!r} before anything"
                    " reads it: call it an output"
                )
            touched.add(operand.tensor)
        written.update(operand.tensor for operand in kernel.operands if operand.write)


def _check_kernel(kernel: Kernel, sequence: KernelSequence, written: set[int]) -> None:
    """Raise PlacementError if a kernel's operands, times, algorithms or measured table are invalid.
    ``written`` holds the tensors that earlier kernels write or that are there from the start."""
    spot = f"kernel {kernel.name!r}"
    numbers = [operand.tensor for operand in kernel.operands]
    if not all(0 <= t < len(sequence.tensors) for t in numbers) or len(set(numbers)) < len(numbers):
        raise PlacementError(
            f"{spot} uses a tensor twice or one that does not exist: list each tensor in one"
            " operand"
        )
    for operand in kernel.operands:
        name = sequence.tensors[operand.tensor].name
        if operand.read and operand.tensor not in written:
            raise PlacementError(
                f"{spot} reads {name!r}, which no kernel before it has written: put kernels in an"
                " order in which they can run"
            )
        if not (operand.read or operand.write):
            raise PlacementError(f"{spot} neither reads nor writes its operand {name!r}")
        if not (0 <= operand.fast_seconds < math.inf and operand.slow_seconds >= 0):
            raise PlacementError(
                f"{spot}: times of operand {name!r} are {operand.fast_seconds} and"
                f" {operand.slow_seconds}: no time is negative"
            )
    if not kernel.algorithms:
        raise PlacementError(f"{spot} has no algorithm: give at least one")
    for algorithm in kernel.algorithms:
        if not (0 <= algorithm.seconds < math.inf and 0 <= algorithm.workspace < WHOLE_LIMIT):
            given = f"{algorithm.seconds} s and {algorithm.workspace} bytes"
            raise PlacementError(
                f"{spot}, algorithm {algorithm.name!r}: {given}: give finite numbers of at least 0"
            )
    times = [algorithm.seconds for algorithm in kernel.algorithms]
    times += [
        seconds
        for operand in kernel.operands
        for seconds in (operand.fast_seconds, operand.slow_seconds)
    ]
    longest = max(filter(math.isfinite, itertools.chain(times, *kernel.measured or ())))
    if longest > LONGEST:
        raise PlacementError(
            f"{spot} takes {longest} s: give times of at most {LONGEST:g} s, or infinite where it"
            " cannot run"
        )
    if kernel.measured is not None:
        entries = 2 ** min(len(kernel.operands), MOST_TABLED)
        if [len(row) for row in kernel.measured] != [entries] * len(kernel.algorithms):
            raise PlacementError(
                f"{spot}: a table of measured times has {entries} entries for each algorithm"
            )
        if not all(value >= 0 for value in itertools.chain(*kernel.measured)) or not all(
            math.isfinite(row[0]) for row in kernel.measured
        ):
            raise PlacementError(
                f"{spot}: measured times are at least 0, and finite where all operands are fast"
            )
