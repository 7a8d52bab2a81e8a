"""Makes a plan from profiled calls under a budget: the kernel sequence, what stays in the arena,
what moves, and every address."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.answer import Allocation
from loadmaster.allocation.fit_or_tighten import fit_or_tighten
from loadmaster.allocation.problem import Buffer
from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.effort import Effort
from loadmaster.core.errors import BudgetError, CapacityError
from loadmaster.core.provenance import Label, Provenance
from loadmaster.core.units import format_bytes
from loadmaster.integrations.torch_compile.captured import Captured, Owner, views
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.moving import place_for_runtime
from loadmaster.placement.decisions import Mode, Stay, TensorPlacement, all_fast
from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelSequence,
    Operand,
    StoredKind,
    StoredTensor,
)
from loadmaster.placement.strategies.result import least_bytes
from loadmaster.placement.timing import time_moves

_ROUNDS = 12
"""Rounds of packing at the budget that was asked for."""
_FEW = 4
"""Rounds of packing at each budget that is tried in the search for the smallest that works."""
_STEP, _CLOSE = 0.02, 0.01
"""Fractions of the upper limit: the first step of the search for the smallest budget, and the
distance at which it ends."""
_PACKING_BUDGET_DIVISOR = 128
"""Each packing has the usual budget divided by this. A search that fails at length remembers
states: 100 MiB, which would be the peak of the step that plans. Other moves in the next round help
as much."""
_READS_AHEAD = (1, 2, 4)
"""Numbers of the largest tensor that moves for which room is left in trials, so that it is read
ahead."""
_GAP, _TRIAL_GAP = 0.01, 0.05
"""Shares of the bound within which the choice of what stays ends, at first and in trials, whose
predicted times are compared anyway."""
_CANNOT = float("inf")
_OPERANDS, _SMALLER = (
    "the operator itself",
    "a smaller batch, shorter sequences or a smaller layer make it smaller",
)
_GIVEN, _RESULTS, _HELD, _GRADIENTS, _OTHERS, _OUTSIDE = (
    "inputs, and parameters that do not move",
    "results",
    "results of earlier graphs and steps",
    "gradients that do not move",
    "parameters of other graphs",
    "what operators allocate outside of the plan",
)
_CHANGES = {
    _GIVEN: "a smaller batch gives back what inputs take of it",
    _RESULTS: "a compiled module that returns only its loss gives back up to all of it",
    _HELD: "deleting the outputs of a step before the next one begins gives back up to all of it",
    _GRADIENTS: (
        "the option optimizer gives back up to all of it, where parameters have no hooks and belong"
        " to one graph"
    ),
    _OTHERS: "one graph without breaks (fullgraph=True) gives back up to all of it",
    _OUTSIDE: "a smaller batch gives back some of it",
}
"""What holds fast memory outside of the arena, and the change that gives most of it back."""


@dataclass(frozen=True)
class Problem:
    """A graph as a placement problem.

    Attributes
    ----------
    sequence
        Calls as kernels, and the storages that the plan keeps as tensors.
    storage
        The storage behind every tensor.
    elsewhere
        Bytes of fast memory outside of the arena while each kernel runs, shape (kernels,):
        parameters that do not move, inputs, results so far, other graphs' parameters, what
        operators allocate that cannot be planned.
    holders
        The same by what holds it, a key of `_CHANGES`.
    """

    sequence: KernelSequence
    storage: tuple[int, ...]
    elsewhere: Ints
    holders: Mapping[str, Ints] = field(default_factory=dict)

    def ceilings(self, budget: int) -> Ints:
        """Bytes of the arena that a budget leaves while each kernel runs, shape (kernels,)."""
        return (budget - self.elsewhere) // self.sequence.alignment * self.sequence.alignment

    def needed(self) -> Ints:
        """Bytes of fast memory without which each kernel cannot run, shape (kernels,)."""
        return least_bytes(self.sequence) + self.elsewhere

    def peak(self) -> int:
        """Most bytes of fast memory in use at once when nothing moves.

        A packed arena may take more than this, where it has gaps at the kernel with the most bytes
        elsewhere.
        """
        return int((self.sequence.live_bytes() + self.elsewhere).max(initial=0))


@dataclass(frozen=True)
class Placed:
    """A placement with the offset of every stay and of every kernel's workspace in the arena, and
    the arena's bytes.

    ``peak`` is the most fast memory in use at once, the arena's and elsewhere; ``ceilings`` bound
    the offsets at every kernel.
    """

    placement: TensorPlacement
    stays: tuple[int, ...]
    workspaces: tuple[int, ...]
    arena: int
    peak: int
    ceilings: Ints


def problem_of(
    name: str,
    captured: Captured,
    profiles: list[CallProfile],
    seconds: Floats,
    link: CopyLink,
    alignment: int,
    moving: frozenset[int] = frozenset(),
    others: int = 0,
    gradients: int = 0,
    results: tuple[int, int] = (0, 0),
    shifts: Mapping[int, int] | None = None,
) -> Problem:
    """Make the kernel sequence of calls that take ``seconds`` each.

    Of the storages that callers own, and of gradients, those in ``moving`` are the plan's to move;
    all others are where they are, and so are ``others`` bytes of other graphs, and, when the second
    part runs, ``gradients`` bytes that those after this graph have made. ``results`` are bytes that
    were returned before and that somebody holds while the first, and while the second part runs;
    ``shifts`` are bytes that come before storages in their place, if they move.
    """
    storages = captured.storages
    away = moving | captured.streamed
    planned = [
        storage.bytes > 0
        and (storage.owner is Owner.PLAN or s in moving)
        and s not in captured.streamed
        for s, storage in enumerate(storages)
    ]
    numbers: dict[int, int] = {}
    for call in captured.calls:
        for storage in (*call.reads, *call.writes):
            if planned[storage]:
                numbers.setdefault(storage, len(numbers))
    kernels = []
    holders = {holder: np.zeros(len(captured.calls), dtype=np.int64) for holder in _CHANGES}
    holders[_OTHERS] += others
    holders[_GIVEN] += sum(
        storage.bytes
        for s, storage in enumerate(storages)
        if storage.owner is Owner.CALLER and s not in away
    )
    boundary = captured.parts[0].end
    holders[_GRADIENTS][boundary:] += gradients
    holders[_HELD][:boundary] += results[0]
    holders[_HELD][boundary:] += results[1]
    second = {view.storage for part in captured.parts[1:] for view in views(part.returned)}
    made: set[int] = set()
    for k, (call, profile) in enumerate(zip(captured.calls, profiles, strict=True)):
        fresh = [s for s in call.writes if s not in made]
        made.update(call.writes)
        for s in fresh:
            if storages[s].owner is Owner.RETURNED and s not in away:
                holders[_GRADIENTS if s in second else _RESULTS][k:] += storages[s].bytes
        holders[_OUTSIDE][k] += profile.outside
        operands = tuple(
            Operand(numbers[s], read=s in call.reads, write=s in call.writes, slow_seconds=_CANNOT)
            for s in dict.fromkeys((*call.reads, *call.writes))
            if s in numbers
        )
        workspace = -(-profile.workspace // alignment) * alignment
        kernels.append(
            Kernel(
                call.name,
                call.kind,
                operands,
                (Algorithm("measured", float(seconds[k]), workspace),),
            )
        )
    kinds = {
        Owner.PLAN: StoredKind.INTERMEDIATE,
        Owner.CALLER: StoredKind.WEIGHT,
        Owner.RETURNED: StoredKind.OUTPUT,
    }
    before = shifts or {}
    tensors = tuple(
        StoredTensor(
            storages[s].name, storages[s].bytes + before.get(s, 0), kinds[storages[s].owner]
        )
        for s in numbers
    )
    elsewhere = np.sum(list(holders.values()), axis=0)
    costs = (Provenance(Label.MEASURED, "each kernel alone, on this machine", len(kernels)),)
    return Problem(
        KernelSequence(name, tensors, tuple(kernels), link, alignment, costs=costs),
        tuple(numbers),
        elsewhere,
        holders,
    )


class TooSmall(BudgetError):
    """Raised for a budget that leaves tensors less than ``smallest`` bytes, the least that works;
    ``why`` gives the reason."""

    def __init__(self, budget: int, smallest: int, why: str) -> None:
        super().__init__(f"fast_memory {format_bytes(budget)} is too small: {why}")
        self.smallest, self.why = smallest, why


@dataclass(frozen=True)
class Search:
    """Placements of one graph for any budget of fast memory in bytes.

    ``make`` gives the problem in which some of the ``movable`` storages of the caller move. Which
    of them do is decided first, as if those that move could stay in the fast memory from one step
    to the next; those that are there all the time keep PyTorch's own memory. All move with
    ``offload_idle``. ``objects`` are bytes that the user's budget has beyond those here, for what
    is no tensor. ``provisional`` plans are made again with measured times: until then, no room to
    read ahead is tried, which takes most of planning.
    """

    make: Callable[[frozenset[int]], Problem]
    movable: frozenset[int]
    mode: Mode
    offload_idle: bool
    objects: int = 0
    provisional: bool = False

    def attempt(self, budget: int | None) -> tuple[Problem, Placed] | int:
        """Place and pack; where that fails, return the kernel at which it does. A budget of None
        has no limit."""
        free = self.make(frozenset())
        unmoved = _unmoved(free)
        if budget is None or (unmoved.peak <= budget and not self.offload_idle):
            return free, unmoved
        needed = self.make(self.movable).needed()
        if needed.max(initial=0) > budget:
            return int(needed.argmax())
        found = self.within(budget, _ROUNDS)
        return found if isinstance(found, int) else self._with_room_to_prefetch(found, budget)

    def within(self, budget: int, rounds: int) -> tuple[Problem, Placed] | int:
        """Return the problem and its placement; where none is found, the kernel at which it
        fails."""
        failed = 0
        staying = frozenset() if self.offload_idle else _staying(self.make(self.movable), budget)
        for moving in dict.fromkeys((self.movable - staying, self.movable)):
            found = self._moved(moving, budget, rounds)
            if not isinstance(found, int):
                return found
            failed = found
        return failed

    def _moved(
        self, moving: frozenset[int], budget: int, rounds: int
    ) -> tuple[Problem, Placed] | int:
        problem = self.make(moving)
        found = _packed(problem, budget, self.mode, rounds)
        return found if isinstance(found, int) else (problem, found)

    def _with_room_to_prefetch(
        self, first: tuple[Problem, Placed], budget: int
    ) -> tuple[Problem, Placed]:
        """Return the fastest of a placement and others in which less stays, so that reads of what
        moves may overlap more kernels.

        Where all room is taken by what stays, a read waits until the tensor before it has been
        used, and computing waits for the read.
        """
        problem, best = first
        tensors = problem.sequence.tensors
        moved = [
            tensors[move.tensor].bytes
            for move in best.placement.moves
            if tensors[move.tensor].kind is not StoredKind.INTERMEDIATE
        ]
        if self.mode is not Mode.ASYNC or self.offload_idle or self.provisional or not moved:
            return first
        everything, tried, least = (
            self.make(self.movable),
            {self.movable.intersection(problem.storage)},
            _seconds(first),
        )
        for number in _READS_AHEAD:
            moving = self.movable - _staying(everything, budget - number * max(moved), _TRIAL_GAP)
            if _seconds_of_reads(everything, moving) >= least:
                break  # with more room, more would move
            found = 0 if moving in tried else self._moved(moving, budget, _FEW)
            tried.add(moving)
            if not isinstance(found, int) and (seconds := _seconds(found)) < least:
                first, least = found, seconds
        return first

    def refusal(self, budget: int, failed: int) -> TooSmall:
        """Explain why a budget cannot be kept: the kernel that fails, what it needs, and the
        smallest budget that works.

        The smallest budget is what some kernel needs at once, if that can be packed; else a search
        finds it to about 1 %.
        """
        problem, enough = self.make(self.movable), _unmoved(self.make(frozenset())).peak
        needed = problem.needed()
        low, high = budget, max(int(needed.max(initial=0)), budget)
        step = max(int(high * _STEP), 1)
        while high < enough and isinstance(kernel := self.within(high, _FEW), int):
            low, high, failed, step = high, min(high + step, enough), kernel, 2 * step
        while low >= needed.max(initial=0) and high - low > high * _CLOSE:
            middle = (low + high) // 2
            kernel = self.within(middle, _FEW)
            low, high, failed = (
                (middle, high, kernel) if isinstance(kernel, int) else (low, middle, failed)
            )
        stuck, least = problem.sequence.kernels[failed], int(needed[failed])
        beside = "" if least > budget else " beside what lives on"
        asked, whole = budget + self.objects, high + self.objects
        objects = (
            f", {format_bytes(self.objects)} of it for objects of the compiled graphs"
            if self.objects
            else ""
        )
        return TooSmall(
            asked,
            high,
            f"operator {stuck.kind} ({stuck.name}) needs {least} bytes ({format_bytes(least)}) at"
            f" once{beside}, {format_bytes(int(problem.elsewhere[failed]))} of them inputs, results"
            " and others that do not move; without cutting kernels further the smallest budget"
            f" that works is {whole} bytes ({format_bytes(whole)}{objects});"
            f" {_advice(problem, failed, least)}",
        )


def _advice(problem: Problem, failed: int, least: int) -> str:
    """Say what holds most of the memory at a kernel, and the change that would give most of it
    back."""
    held = {holder: int(bytes[failed]) for holder, bytes in problem.holders.items()}
    held[_OPERANDS] = least - sum(held.values())
    most = max(held, key=lambda holder: held[holder])
    return (
        f"most is held by {most}, {format_bytes(held[most])}:"
        f" {(_CHANGES | {_OPERANDS: _SMALLER})[most]}"
    )


def _seconds(found: tuple[Problem, Placed]) -> float:
    """Seconds of a step, as predicted."""
    problem, placed = found
    return time_moves(problem.sequence, placed.placement).total


def _seconds_of_reads(problem: Problem, moving: frozenset[int]) -> float:
    """Seconds in which weights that move can be read, each once: a step takes no less."""
    weights = (
        tensor
        for s, tensor in zip(problem.storage, problem.sequence.tensors, strict=True)
        if s in moving
    )
    read, link = (
        sum(tensor.bytes for tensor in weights if tensor.kind is StoredKind.WEIGHT),
        problem.sequence.link,
    )
    return read / max(link.to_fast, link.asynchronous_to_fast)


def _unmoved(problem: Problem) -> Placed:
    unmoved = _pack(problem, all_fast(problem.sequence), None)[0]
    assert unmoved is not None
    return unmoved


def _staying(problem: Problem, budget: int, gap: float = _GAP) -> frozenset[int]:
    """Choose the storages of the caller, and gradients, that stay in the fast memory for as long as
    they exist."""
    sequence = problem.sequence
    if all(tensor.kind is StoredKind.INTERMEDIATE for tensor in sequence.tensors):
        return frozenset()
    try:
        placement = place_for_runtime(
            sequence,
            np.maximum(problem.ceilings(budget), 0),
            Mode.SYNC,
            keep_between_steps=True,
            gap=gap,
        )
    except CapacityError:
        return frozenset()
    moved = {move.tensor for move in placement.moves}
    lives = sequence.lifetimes.tolist()
    always = {
        stay.tensor for stay in placement.stays if [stay.start, stay.end] == lives[stay.tensor]
    }
    return frozenset(
        problem.storage[t]
        for t in always - moved
        if sequence.tensors[t].kind is not StoredKind.INTERMEDIATE
    )


def _packed(problem: Problem, budget: int, mode: Mode, rounds: int) -> Placed | int:
    """Place and pack, with lower limits after a packing that failed; return the kernel that fails
    if there is no packing.

    Until limits are lower by a whole tensor the placement is often the same: what is known to fail
    is not packed again.
    """
    sequence, ceilings, needed = problem.sequence, problem.ceilings(budget), problem.needed()
    failed = int(needed.argmax())
    tops: dict[tuple[Stay, ...], Ints] = {}

    def place(limits: Ints) -> TensorPlacement:
        return place_for_runtime(sequence, limits, mode)

    def pack(placement: TensorPlacement, number: int) -> Placed | Ints:
        nonlocal failed
        if placement.stays not in tops:
            placed, tops[placement.stays] = _pack(problem, placement, ceilings)
            if placed is not None:
                return placed
        over: Ints = np.maximum(tops[placement.stays] - ceilings, 0)
        failed = int(over.argmax())
        return over

    limits, least = np.maximum(ceilings, 0), needed - problem.elsewhere
    try:
        first = place(limits)
    except CapacityError:
        return failed
    found = fit_or_tighten(
        first, place, pack, limits, least, rounds=2 * rounds, alignment=sequence.alignment
    )
    return failed if found is None else found


def _pack(
    problem: Problem, placement: TensorPlacement, ceilings: Ints | None
) -> tuple[Placed | None, Ints]:
    """Find addresses below the ceiling of every kernel (None, if none were found), and the highest
    address in use at every kernel."""
    sequence, step = problem.sequence, problem.sequence.alignment
    buffers = [
        Buffer(f"s{i}", s.start, s.end, int(sequence.sizes[s.tensor]), alignment=step)
        for i, s in enumerate(placement.stays)
    ]
    buffers += [
        Buffer(f"w{k}", k, k + 1, kernel.algorithms[0].workspace, alignment=step)
        for k, kernel in enumerate(sequence.kernels)
    ]
    above = [] if ceilings is None else _above(ceilings, int(ceilings.max(initial=0)))
    answer = _packing(buffers + above, None if ceilings is None else int(ceilings.max(initial=0)))
    if answer.offsets is None:
        answer = _packing(buffers, None)  # to see where it sticks out
    assert answer.offsets is not None
    offsets = answer.offsets[: len(buffers)].tolist()
    top = np.zeros(len(sequence.kernels), dtype=np.int64)
    for buffer, offset in zip(buffers, offsets, strict=True):
        if buffer.upper > buffer.lower and buffer.size:
            top[buffer.lower : buffer.upper] = np.maximum(
                top[buffer.lower : buffer.upper], offset + buffer.size
            )
    if ceilings is not None and (top > ceilings).any():
        return None, top
    arena = int(top.max(initial=0))
    allowed = (
        np.full(len(top), arena, dtype=np.int64)
        if ceilings is None
        else np.minimum(ceilings, arena)
    )
    peak = int((_resident(top, allowed) + problem.elsewhere).max(initial=0))
    stays = len(placement.stays)
    return (
        Placed(placement, tuple(offsets[:stays]), tuple(offsets[stays:]), arena, peak, allowed),
        top,
    )


def _packing(buffers: list[Buffer], capacity: int | None) -> Allocation:
    return allocate(buffers, capacity, effort=Effort.NORMAL.divided(_PACKING_BUDGET_DIVISOR))


def _resident(top: Ints, allowed: Ints) -> Ints:
    """Bytes of the arena with pages in memory while each kernel runs: those touched before and not
    above a ceiling since."""
    resident = np.empty_like(top)
    now = int(allowed[0]) if len(allowed) else 0
    for k in range(len(top)):
        now = min(max(now, int(top[k])), int(allowed[k]))
        resident[k] = now
    return resident


def _above(ceilings: Ints, capacity: int) -> list[Buffer]:
    """Fixed buffers that occupy the space above the ceilings, so that the other buffers stay
    below."""
    edges = [0, *(np.flatnonzero(np.diff(ceilings)) + 1).tolist(), len(ceilings)]
    spans = [(a, b, int(ceilings[a])) for a, b in itertools.pairwise(edges) if b > a]
    return [
        Buffer(f"above{a}", a, b, capacity - low, offset=low)
        for a, b, low in spans
        if low < capacity
    ]
