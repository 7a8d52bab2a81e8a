"""From profiled calls to a plan: the kernel sequence, what stays in the arena, what moves, and every address."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.allocator import allocate
from loadmaster.buffers import Buffer
from loadmaster.errors import BudgetError, CapacityError
from loadmaster.kernel_sequence import Algorithm, CopyLink, Kernel, KernelSequence, Operand, StoredTensor
from loadmaster.runtime.captured import Captured, Owner
from loadmaster.runtime.kernel_profile import CallProfile
from loadmaster.runtime.moving import place_for_runtime
from loadmaster.tensor_placement import Mode, TensorPlacement, all_fast
from loadmaster.units import format_bytes

Ints = NDArray[np.int64]

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
    elsewhere: Ints

    def needed(self) -> Ints:
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
    ceilings: Ints


def problem_of(
    name: str, captured: Captured, profiles: list[CallProfile], seconds: NDArray[np.float64], link: CopyLink, alignment: int
) -> Problem:
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
    sequence = problem.sequence
    if budget is None:
        unmoved = _pack(problem, all_fast(sequence), None)[0]
        assert unmoved is not None
        return unmoved
    needed = problem.needed()
    if needed.max(initial=0) > budget:
        raise refusal(problem, budget)
    ceilings = (budget - problem.elsewhere) // sequence.alignment * sequence.alignment
    limits = ceilings
    for number in range(2 * _ROUNDS):
        try:
            placement = place_for_runtime(sequence, limits, mode)
        except CapacityError:
            break
        placed, tops = _pack(problem, placement, ceilings)
        if placed is not None:
            return placed
        over = np.maximum(tops - ceilings, 0)
        if number < _ROUNDS:
            limits = np.where(over > 0, limits - np.maximum(over // 2, sequence.alignment), limits)
        else:
            limits = (limits * _TIGHTER).astype(np.int64)
    raise refusal(problem, budget)


def refusal(problem: Problem, budget: int) -> BudgetError:
    """Why a budget cannot be kept, and the smallest that can, as far as is known without trying more."""
    needed = problem.needed()
    k = int(needed.argmax())
    kernel = problem.sequence.kernels[k]
    least = int(needed[k])
    why = "" if least > budget else "; no addresses were found for it: give a little more"
    return BudgetError(
        f"fast_memory {format_bytes(budget)} is too small: operator {kernel.kind} ({kernel.name}) needs {least} bytes "
        f"({format_bytes(least)}) at once, {format_bytes(int(problem.elsewhere[k]))} of them parameters, inputs and results, "
        f"which do not move{why}"
    )


def _pack(problem: Problem, placement: TensorPlacement, ceilings: Ints | None) -> tuple[Placed | None, Ints]:
    """Addresses below the ceiling of every kernel (None, if none were found), and the highest address in use at every kernel."""
    sequence = problem.sequence
    step, kernels = sequence.alignment, len(sequence.kernels)
    buffers = [Buffer(f"s{i}", s.start, s.end, int(sequence.sizes[s.tensor]), alignment=step) for i, s in enumerate(placement.stays)]
    buffers += [Buffer(f"w{k}", k, k + 1, kernel.algorithms[0].workspace, alignment=step) for k, kernel in enumerate(sequence.kernels)]
    above = [] if ceilings is None else _above(ceilings, int(ceilings.max(initial=0)))
    answer = allocate(buffers + above, None if ceilings is None else int(ceilings.max(initial=0)))
    if answer.offsets is None and above:
        answer = allocate(buffers)  # to see where it sticks out
    assert answer.offsets is not None
    offsets = [int(offset) for offset in answer.offsets[: len(buffers)]]
    top = np.zeros(kernels, dtype=np.int64)
    for buffer, offset in zip(buffers, offsets, strict=True):
        if buffer.upper > buffer.lower and buffer.size:
            top[buffer.lower : buffer.upper] = np.maximum(top[buffer.lower : buffer.upper], offset + buffer.size)
    if ceilings is not None and (top > ceilings).any():
        return None, top
    arena = int(top.max(initial=0))
    allowed = np.full(kernels, arena, dtype=np.int64) if ceilings is None else np.minimum(ceilings, arena)
    peak = int((_resident(top, allowed) + problem.elsewhere).max(initial=0))
    stays = len(placement.stays)
    return Placed(placement, tuple(offsets[:stays]), tuple(offsets[stays:]), arena, peak, allowed), top


def _resident(top: Ints, allowed: Ints) -> Ints:
    """Bytes of the arena that hold pages while each kernel runs: all that were touched and not above a ceiling since."""
    resident = np.empty_like(top)
    now = int(allowed[0]) if len(allowed) else 0
    for k in range(len(top)):
        now = min(max(now, int(top[k])), int(allowed[k]))
        resident[k] = now
    return resident


def _above(ceilings: Ints, capacity: int) -> list[Buffer]:
    """What keeps buffers below a ceiling: the space above it, taken."""
    edges = [0, *(np.flatnonzero(np.diff(ceilings)) + 1).tolist(), len(ceilings)]
    spans = [(a, b, int(ceilings[a])) for a, b in itertools.pairwise(edges) if b > a]
    return [Buffer(f"above{a}", a, b, capacity - low, offset=low) for a, b, low in spans if low < capacity]
