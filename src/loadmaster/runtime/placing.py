"""From profiled calls to a plan: the kernel sequence, what stays in the arena, what moves, and every address."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.allocator import allocate
from loadmaster.buffers import Buffer
from loadmaster.errors import BudgetError
from loadmaster.kernel_sequence import Algorithm, CopyLink, Kernel, KernelSequence, Operand, StoredTensor
from loadmaster.runtime.captured import Captured, Owner
from loadmaster.runtime.kernel_profile import CallProfile
from loadmaster.runtime.moving import place_for_runtime
from loadmaster.tensor_placement import Mode, TensorPlacement
from loadmaster.units import format_bytes

_TIGHTER = 0.97
_ROUNDS = 12
_CANNOT = float("inf")


@dataclass(frozen=True)
class Problem:
    """A graph as the engines see it.

    Attributes
    ----------
    sequence
        Calls as kernels, and the storages that the plan keeps as tensors.
    storage
        The storage behind every tensor.
    elsewhere
        Bytes of fast memory outside of the arena while each kernel runs: parameters, inputs, results so far, what operators allocate
        that cannot be planned.
    """

    sequence: KernelSequence
    storage: tuple[int, ...]
    elsewhere: NDArray[np.int64]

    def needed(self) -> NDArray[np.int64]:
        """Bytes of fast memory without which each kernel cannot run."""
        sizes = self.sequence.sizes
        return np.array(
            [
                sum(int(sizes[o.tensor]) for o in kernel.operands) + kernel.algorithms[0].workspace + int(other)
                for kernel, other in zip(self.sequence.kernels, self.elsewhere, strict=True)
            ],
            dtype=np.int64,
        )

    def peak(self) -> int:
        """Most bytes of fast memory that are in use at once when nothing moves."""
        return int((self.sequence.live_bytes() + self.elsewhere).max(initial=0))


@dataclass(frozen=True)
class Placed:
    """Decisions with addresses: of every stay, then of every kernel's workspace; and the arena's size."""

    placement: TensorPlacement
    stays: tuple[int, ...]
    workspaces: tuple[int, ...]
    arena: int
    peak: int
    ceilings: NDArray[np.int64]
    seconds: float


def problem_of(name: str, captured: Captured, profiles: list[CallProfile], seconds: NDArray[np.float64], link: CopyLink, alignment: int) -> Problem:
    """The kernel sequence of calls that take ``seconds`` each."""
    storages = captured.storages
    numbers: dict[int, int] = {}
    for call in captured.calls:
        for storage in (*call.reads, *call.writes):
            if storages[storage].owner is Owner.PLAN and storages[storage].bytes > 0:
                numbers.setdefault(storage, len(numbers))
    kernels = []
    elsewhere = np.zeros(len(captured.calls), dtype=np.int64)
    elsewhere += sum(s.bytes for s in storages if s.owner is Owner.CALLER)
    made: set[int] = set()
    for k, (call, profile) in enumerate(zip(captured.calls, profiles, strict=True)):
        fresh = [s for s in call.writes if s not in made]
        made.update(call.writes)
        elsewhere[k:] += sum(storages[s].bytes for s in fresh if storages[s].owner is Owner.RETURNED)
        elsewhere[k] += profile.outside
        operands = tuple(
            Operand(numbers[s], read=s in call.reads, write=s in call.writes, slow_seconds=_CANNOT)
            for s in dict.fromkeys((*call.reads, *call.writes))
            if s in numbers
        )
        workspace = -(-profile.workspace // alignment) * alignment
        kernels.append(Kernel(call.name, call.kind, operands, (Algorithm("measured", float(seconds[k]), workspace),)))
    tensors = tuple(StoredTensor(storages[s].name, storages[s].bytes) for s in numbers)
    return Problem(KernelSequence(name, tensors, tuple(kernels), link, alignment), tuple(numbers), elsewhere)


def place(problem: Problem, budget: int | None, mode: Mode) -> Placed:
    """Decide what is where under a budget of fast memory (None: nothing moves), and give everything an address.

    Raises `BudgetError` with the smallest budget that works and the operator that needs it.
    """
    if budget is None:
        limits = np.full(len(problem.sequence.kernels), problem.peak() * 2, dtype=np.int64)
        placed = _pack(problem, *_unmoved(problem), ceilings=None)
        assert placed is not None and len(limits) >= 0
        return placed
    needed = problem.needed()
    if needed.max(initial=0) > budget:
        raise refusal(problem, int(needed.max()), budget)
    ceilings = budget - problem.elsewhere
    limits = ceilings
    for _ in range(_ROUNDS):
        placement, seconds = place_for_runtime(problem.sequence, limits, mode)
        placed = _pack(problem, placement, seconds, ceilings)
        if placed is not None:
            return placed
        limits = np.maximum((limits * _TIGHTER).astype(np.int64), needed - problem.elsewhere)
    raise refusal(problem, budget + budget // 20, budget)


def refusal(problem: Problem, least: int, budget: int) -> BudgetError:
    """Why a budget cannot be kept."""
    needed = problem.needed()
    k = int(needed.argmax())
    kernel = problem.sequence.kernels[k]
    return BudgetError(
        f"fast_memory {format_bytes(budget)} is too small: operator {kernel.kind} ({kernel.name}) needs {format_bytes(int(needed[k]))} at once, "
        f"{format_bytes(int(problem.elsewhere[k]))} of it parameters, inputs and results that do not move; "
        f"give at least {least} bytes ({format_bytes(least)})"
    )


def _unmoved(problem: Problem) -> tuple[TensorPlacement, float]:
    from loadmaster.tensor_placement import all_fast

    return all_fast(problem.sequence), problem.sequence.seconds(in_slow=False)


def _pack(problem: Problem, placement: TensorPlacement, seconds: float, ceilings: NDArray[np.int64] | None) -> Placed | None:
    """Addresses below the ceiling of every kernel, or None if none were found."""
    sequence = problem.sequence
    buffers = [Buffer(f"s{i}", s.start, s.end, int(sequence.sizes[s.tensor]), alignment=sequence.alignment) for i, s in enumerate(placement.stays)]
    buffers += [
        Buffer(f"w{k}", k, k + 1, kernel.algorithms[0].workspace, alignment=sequence.alignment) for k, kernel in enumerate(sequence.kernels)
    ]
    capacity = None
    if ceilings is not None:
        capacity = int(ceilings.max(initial=0)) // sequence.alignment * sequence.alignment
        buffers += _above(ceilings // sequence.alignment * sequence.alignment, capacity)
    answer = allocate(buffers, capacity)
    if answer.offsets is None:
        return None
    offsets = [int(offset) for offset in answer.offsets]
    stays, kernels = len(placement.stays), len(sequence.kernels)
    top = np.zeros(kernels, dtype=np.int64)
    for buffer, offset in zip(buffers[: stays + kernels], offsets, strict=False):
        if buffer.upper > buffer.lower and buffer.size:
            top[buffer.lower : buffer.upper] = np.maximum(top[buffer.lower : buffer.upper], offset + buffer.size)
    arena = int(top.max(initial=0))
    allowed = np.full(kernels, arena, dtype=np.int64) if ceilings is None else np.minimum(ceilings, arena)
    resident = np.minimum(np.maximum.accumulate(top), np.minimum.accumulate(allowed)) if ceilings is None else _resident(top, allowed)
    peak = int((resident + problem.elsewhere).max(initial=0))
    return Placed(placement, tuple(offsets[:stays]), tuple(offsets[stays : stays + kernels]), arena, peak, allowed, seconds)


def _resident(top: NDArray[np.int64], allowed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of the arena that hold pages while each kernel runs: all that were touched and not above a ceiling since."""
    resident = np.empty_like(top)
    now = int(allowed[0]) if len(allowed) else 0
    for k in range(len(top)):
        now = min(max(now, int(top[k])), int(allowed[k]))
        resident[k] = now
    return resident


def _above(ceilings: NDArray[np.int64], capacity: int) -> list[Buffer]:
    """What keeps buffers below a ceiling: the space above it, taken."""
    edges = [0, *(np.flatnonzero(np.diff(ceilings)) + 1).tolist(), len(ceilings)]
    spans = [(a, b, int(ceilings[a])) for a, b in zip(edges, edges[1:], strict=False) if b > a]
    return [Buffer(f"above{a}", a, b, capacity - low, offset=low) for a, b, low in spans if low < capacity]
