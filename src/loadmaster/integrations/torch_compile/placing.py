"""Makes a plan from profiled calls under a budget: the kernel sequence, what stays in the arena,
what moves, and every address."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.fit_or_tighten import fit_or_tighten
from loadmaster.allocation.problem import Buffer
from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.effort import Effort
from loadmaster.core.errors import BudgetError, CapacityError
from loadmaster.core.provenance import Label, Provenance
from loadmaster.core.units import format_bytes
from loadmaster.integrations.torch_compile.captured import Owner, views
from loadmaster.integrations.torch_compile.cpu_memory import DeviceMemory
from loadmaster.integrations.torch_compile.updates import Traced
from loadmaster.placement.autotm.engine import place_by_program
from loadmaster.placement.decisions import (
    Mode,
    Move,
    Stay,
    TensorPlacement,
    all_fast,
    fast_bytes,
)
from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelSequence,
    Operand,
    StoredKind,
    StoredTensor,
    least_bytes,
)
from loadmaster.placement.timing import time_moves

_SMALL, _SMALL_SHARE = 64 << 10, 0.02
"""Bytes up to which a tensor that the graph makes stays where it is, and the share of the fast
memory that all such may take. Starting a copy and waiting for its thread takes 0.2 ms and more, in
which a disk moves 400 KiB; a network has two statistics of each normalisation."""


def place_for_runtime(
    sequence: KernelSequence,
    limits: Ints,
    mode: Mode,
    keep_between_steps: bool = False,
    gap: float = 0.01,
) -> TensorPlacement:
    """Find stays and moves that keep ``limits`` (bytes of tensors and workspace while each kernel
    runs). Raises `CapacityError`.

    Small tensors stay for as long as they live, unless the rest has no placement then.
    """
    small, lives = _small(sequence, limits), sequence.lifetimes.tolist()
    stays = tuple(Stay(t, *lives[t]) for t in sorted(small))
    left = limits.astype(np.int64)
    for stay in stays:
        left[stay.start : stay.end] -= sequence.sizes[stay.tensor]
    if small and left.min() >= 0:
        with suppress(CapacityError):
            found = _placed(_without(sequence, small), left, mode, keep_between_steps, gap)
            return replace(found, stays=(*found.stays, *stays))
    return _placed(sequence, limits, mode, keep_between_steps, gap)


def _small(sequence: KernelSequence, limits: Ints) -> frozenset[int]:
    """Choose the small tensors that the sequence makes, smallest first, as long as all together are
    small."""
    sizes, left, chosen = sequence.sizes, _SMALL_SHARE * int(limits.max(initial=0)), set()
    for t in np.argsort(sizes, kind="stable").tolist():
        left -= sizes[t]
        if sizes[t] > _SMALL or left < 0:
            break
        if sequence.tensors[t].kind is StoredKind.INTERMEDIATE and sequence.uses[t]:
            chosen.add(t)
    return frozenset(chosen)


def _without(sequence: KernelSequence, tensors: frozenset[int]) -> KernelSequence:
    """Return the sequence with kernels that do not use these tensors; numbers of tensors are as
    before."""
    kernels = (
        replace(kernel, operands=tuple(o for o in kernel.operands if o.tensor not in tensors))
        for kernel in sequence.kernels
    )
    return replace(sequence, kernels=tuple(kernels))


def _placed(
    sequence: KernelSequence, limits: Ints, mode: Mode, keep_between_steps: bool, gap: float
) -> TensorPlacement:
    """Find stays and moves, of any tensor. Raises `CapacityError`.

    Weights are in the slow memory when a step begins, and weights and outputs when it ends, unless
    ``keep_between_steps`` lets them stay in the fast one. Choosing what moves ends within the share
    ``gap`` of its bound, copies not overlapped.
    """
    if keep_between_steps or all(
        tensor.kind is StoredKind.INTERMEDIATE for tensor in sequence.tensors
    ):
        between = place_by_program(sequence, limits, Mode.SYNC, gap=gap).placement
    else:
        loaded = place_by_program(
            _between_loads(sequence), np.concatenate(([0], limits, [0])), Mode.SYNC, gap=gap
        )
        between = _shifted(loaded.placement)
    return overlapped(sequence, limits, between) if mode is Mode.ASYNC else between


def _between_loads(sequence: KernelSequence) -> KernelSequence:
    """Put a kernel before the sequence that uses all weights at no cost, and one after it that uses
    nothing.

    Under limits of 0 bytes, all that exists while they run must be in the slow memory.
    """
    weights = (t for t, tensor in enumerate(sequence.tensors) if tensor.kind is StoredKind.WEIGHT)
    load = Kernel(
        "load",
        "load",
        tuple(Operand(t, read=True, write=False) for t in weights),
        (Algorithm("load", 0.0),),
    )
    end = Kernel("end", "end", (), (Algorithm("end", 0.0),))
    return replace(sequence, kernels=(load, *sequence.kernels, end))


def _shifted(placement: TensorPlacement) -> TensorPlacement:
    """Return a placement without the kernels of `_between_loads`."""
    return TensorPlacement(
        tuple(Stay(stay.tensor, stay.start - 1, stay.end - 1) for stay in placement.stays),
        tuple(
            Move(move.tensor, move.to_fast, move.start - 1, move.end - 1)
            for move in placement.moves
        ),
        placement.algorithms[1:-1],
    )


def overlapped(
    sequence: KernelSequence, limits: Ints, placement: TensorPlacement
) -> TensorPlacement:
    """Stretch the copies of a placement over kernels, as far as that saves time and leaves room.

    Copies to the slow memory, first to last, take the kernels after their start until they would be
    complete; copies to the fast memory, last to first, the kernels before their end. O(moves x
    kernels). On ResNet-50, a U-Net and GPT-2 at half their peak this comes within 0.2 % of the
    bound of `place_by_program`, whose own answers were not packed below the ceilings without more
    rounds.
    """
    stretch, moves, link = _Stretch(sequence, limits, placement), [*placement.moves], sequence.link
    seconds = [kernel.algorithms[0].seconds for kernel in sequence.kernels]
    starts = np.concatenate(([0.0], np.cumsum(seconds)))  # of kernels, without copies
    free, busy = 0.0, float("inf")
    for i, move in enumerate(moves):
        if not move.to_fast:
            takes = sequence.tensors[move.tensor].bytes / link.asynchronous_to_slow
            free = max(free, starts[move.start]) + takes
            moves[i] = stretch.later(move, int(np.searchsorted(starts, free)))
    # Those to the fast memory begin once a valid copy is in the slow one.
    valid = [(move.tensor, move.end) for move in moves if not move.to_fast]
    for i, move in reversed([*enumerate(moves)]):
        if move.to_fast:
            takes = sequence.tensors[move.tensor].bytes / link.asynchronous_to_fast
            busy = min(busy, starts[move.end]) - takes
            before = (end for t, end in valid if t == move.tensor and end <= move.end)
            earliest = int(np.searchsorted(starts, busy, side="right")) - 1
            moves[i] = stretch.earlier(move, max(earliest, 0, *before))
    moves.sort(key=lambda move: (move.start, move.to_fast, move.end))
    stays = [Stay(t, *span) for t, spans in sorted(stretch.stays.items()) for span in spans]
    return TensorPlacement(tuple(stays), tuple(moves), placement.algorithms)


class _Stretch:
    """Stretches copies over kernels.

    Attributes
    ----------
    stays
        Spans [start, end] of every tensor in the fast memory, which grow.
    room
        Bytes that are free while each kernel runs.
    """

    def __init__(self, sequence: KernelSequence, limits: Ints, placement: TensorPlacement) -> None:
        self.sequence = sequence
        self.stays: dict[int, list[list[int]]] = defaultdict(list)
        for stay in sorted(placement.stays, key=lambda stay: stay.start):
            self.stays[stay.tensor].append([stay.start, stay.end])
        self.room = limits.astype(np.int64) - fast_bytes(sequence, placement)

    def later(self, move: Move, until: int) -> Move:
        """Stretch a copy to the slow memory: the tensor stays in the fast one until position
        ``until`` at most."""
        size, spans = int(self.sequence.sizes[move.tensor]), self.stays[move.tensor]
        own = max(
            (span for span in spans if span[0] < move.start or span[1] > move.start),
            key=lambda span: (span[0] <= move.start, span[0]),
        )
        # What stays on anyway may be copied until its next change, or until it is wanted elsewhere.
        ends = [own[1]] if own[1] != move.start else [s[0] for s in spans if s[0] >= own[1]]
        uses = self.sequence.uses[move.tensor]
        writes = [k for k, operand in uses if operand.write and k >= move.start]
        last = min([*ends[:1], until, len(self.sequence.kernels), *writes])
        end = move.start
        while end < last and (end < own[1] or self.room[end] >= size):
            if end >= own[1]:
                self.room[end] -= size
            end += 1
        own[1] = max(own[1], end)
        return Move(move.tensor, False, move.start, end)

    def earlier(self, move: Move, since: int) -> Move:
        """Prefetch: stretch a copy to the fast memory so that it starts at position ``since`` at
        the earliest."""
        size, spans = int(self.sequence.sizes[move.tensor]), self.stays[move.tensor]
        own = next(span for span in spans if span[0] == move.start)
        since = max([since, *(s[1] for s in spans if s[1] <= own[0] and s is not own)])
        start = move.start
        while start > since and self.room[start - 1] >= size:
            start -= 1
            self.room[start] -= size
        own[0] = start
        return Move(move.tensor, True, start, move.end)


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
_KINDS = {
    Owner.PLAN: StoredKind.INTERMEDIATE,
    Owner.CALLER: StoredKind.WEIGHT,
    Owner.RETURNED: StoredKind.OUTPUT,
}
_GIVEN, _RESULTS, _HELD, _GRADIENTS, _OTHERS, _OUTSIDE, _OPERANDS = (
    "inputs, and parameters that do not move",
    "results",
    "results of earlier graphs and steps",
    "gradients that do not move",
    "parameters of other graphs",
    "what operators allocate outside of the plan",
    "the operator itself",
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
    _OPERANDS: "a smaller batch, shorter sequences or a smaller layer make it smaller",
}
"""What holds fast memory, outside of the arena but for the operator itself, and the change that
gives most of it back."""


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
    """A placement of a problem with the offset of every stay and of every kernel's workspace in the
    arena, and the arena's bytes.

    ``peak`` is the most fast memory in use at once, the arena's and elsewhere; ``ceilings`` bound
    the offsets at every kernel.
    """

    problem: Problem
    placement: TensorPlacement
    stays: tuple[int, ...]
    workspaces: tuple[int, ...]
    arena: int
    peak: int
    ceilings: Ints

    @cached_property
    def seconds(self) -> float:
        """Seconds of a step, as predicted."""
        return time_moves(self.problem.sequence, self.placement).total


class Surroundings(NamedTuple):
    """What a graph's plan must leave free: bytes that other graphs of the model take, and the
    budget, both of fast memory.

    ``persistent`` counts other graphs' parameters, buffers and optimizer state; ``gradients`` those
    that are there when the backward part begins, and ``results`` what earlier graphs and steps have
    returned and somebody still holds, while the forward and while the backward part runs. With
    ``offload_idle`` no graph keeps parameters in the fast memory while others run. ``budget`` is
    None if there is no limit.
    """

    persistent: int = 0
    gradients: int = 0
    results: tuple[int, ...] = (0, 0)
    offload_idle: bool = False
    budget: int | None = None


def problem_of(
    name: str,
    traced: Traced,
    seconds: Floats,
    link: CopyLink,
    memory: DeviceMemory,
    moving: frozenset[int],
    around: Surroundings,
    shifts: Mapping[int, int],
) -> Problem:
    """Make the kernel sequence of calls that take ``seconds`` each.

    Of the storages that callers own, and of gradients, those in ``moving`` are the plan's to move;
    all others are where they are. ``shifts`` are bytes that come before storages in their place, if
    they move.
    """
    storages, alignment = traced.storages, memory.alignment
    used = (s for call in traced.calls for s in call.storages)
    planned = [
        s
        for s in dict.fromkeys(used)
        if storages[s].bytes > 0
        and (storages[s].owner is Owner.PLAN or s in moving)
        and s not in traced.streamed
    ]
    numbers = {s: t for t, s in enumerate(planned)}
    kernels = []
    for call, profile, second in zip(traced.calls, traced.profiles, seconds.tolist(), strict=True):
        operands = tuple(
            Operand(numbers[s], s in call.reads, s in call.writes, slow_seconds=_CANNOT)
            for s in call.storages
            if s in numbers
        )
        workspace = -(-profile.workspace // alignment) * alignment
        measured = (Algorithm("measured", second, workspace),)
        kernels.append(Kernel(call.name, call.kind, operands, measured))
    tensors = tuple(
        StoredTensor(
            storages[s].name, storages[s].bytes + shifts.get(s, 0), _KINDS[storages[s].owner]
        )
        for s in planned
    )
    holders = _holders(traced, moving | traced.streamed, around)
    elsewhere = np.sum(list(holders.values()), axis=0)
    if not memory.shrinks:  # the arena has its full size while they are at their most
        elsewhere[:] = elsewhere.max(initial=0)
    costs = (Provenance(Label.MEASURED, "each kernel alone, on this machine", len(kernels)),)
    sequence = KernelSequence(name, tensors, tuple(kernels), link, alignment, costs=costs)
    return Problem(sequence, tuple(planned), elsewhere, holders)


def _holders(traced: Traced, away: frozenset[int], around: Surroundings) -> dict[str, Ints]:
    """Bytes of fast memory outside of the arena while each kernel runs, by what holds them;
    storages that are ``away`` take none."""
    storages, boundary = traced.storages, traced.parts[0].end
    holders = {holder: np.zeros(len(traced.calls), dtype=np.int64) for holder in _CHANGES}
    holders[_OTHERS] += around.persistent
    holders[_GIVEN] += traced.bytes_of(
        s for s, one in enumerate(storages) if one.owner is Owner.CALLER and s not in away
    )
    holders[_GRADIENTS][boundary:] += around.gradients
    holders[_HELD][:boundary] += around.results[0]
    holders[_HELD][boundary:] += around.results[1]
    second = {view.storage for part in traced.parts[1:] for view in views(part.returned)}
    made: set[int] = set()
    for k, (call, profile) in enumerate(zip(traced.calls, traced.profiles, strict=True)):
        for s in {*call.writes} - made - away:
            if storages[s].owner is Owner.RETURNED:
                holders[_GRADIENTS if s in second else _RESULTS][k:] += storages[s].bytes
        made.update(call.writes)
        holders[_OUTSIDE][k] += profile.outside
    return holders


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

    def attempt(self, budget: int | None) -> Placed | int:
        """Place and pack; where that fails, return the kernel at which it does. A budget of None
        has no limit."""
        unmoved = _unmoved(self.make(frozenset()))
        if budget is None or (unmoved.peak <= budget and not self.offload_idle):
            return unmoved
        needed = self.make(self.movable).needed()
        if needed.max(initial=0) > budget:
            return int(needed.argmax())
        found = self.within(budget, _ROUNDS)
        return found if isinstance(found, int) else self._with_room_to_prefetch(found, budget)

    def within(self, budget: int, rounds: int) -> Placed | int:
        """Return a placement; where none is found, the kernel at which it fails."""
        staying = frozenset() if self.offload_idle else _staying(self.make(self.movable), budget)
        found = self._moved(self.movable - staying, budget, rounds)
        if isinstance(found, int) and staying:
            found = self._moved(self.movable, budget, rounds)
        return found

    def _moved(self, moving: frozenset[int], budget: int, rounds: int) -> Placed | int:
        return _packed(self.make(moving), budget, self.mode, rounds)

    def _with_room_to_prefetch(self, best: Placed, budget: int) -> Placed:
        """Return the fastest of a placement and others in which less stays, so that reads of what
        moves may overlap more kernels.

        Where all room is taken by what stays, a read waits until the tensor before it has been
        used, and computing waits for the read.
        """
        tensors = best.problem.sequence.tensors
        moved = [
            tensors[move.tensor].bytes
            for move in best.placement.moves
            if tensors[move.tensor].kind is not StoredKind.INTERMEDIATE
        ]
        if self.mode is not Mode.ASYNC or self.offload_idle or self.provisional or not moved:
            return best
        everything, tried = (
            self.make(self.movable),
            {self.movable.intersection(best.problem.storage)},
        )
        for number in _READS_AHEAD:
            moving = self.movable - _staying(everything, budget - number * max(moved), _TRIAL_GAP)
            if _seconds_of_reads(everything, moving) >= best.seconds:
                break  # with more room, more would move
            found = 0 if moving in tried else self._moved(moving, budget, _FEW)
            tried.add(moving)
            if not isinstance(found, int) and found.seconds < best.seconds:
                best = found
        return best

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
    most = max(held, key=held.__getitem__)
    return f"most is held by {most}, {format_bytes(held[most])}: {_CHANGES[most]}"


def _seconds_of_reads(problem: Problem, moving: frozenset[int]) -> float:
    """Seconds in which weights that move can be read, each once: a step takes no less."""
    read = sum(
        tensor.bytes
        for s, tensor in zip(problem.storage, problem.sequence.tensors, strict=True)
        if s in moving and tensor.kind is StoredKind.WEIGHT
    )
    link = problem.sequence.link
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
    offsets = None
    if ceilings is not None:
        offsets = _packing([*buffers, *_above(ceilings)], int(ceilings.max(initial=0)))
    if offsets is None:  # to see where it sticks out
        offsets = _packing(buffers, None)
    assert offsets is not None
    top = np.zeros(len(sequence.kernels), dtype=np.int64)
    for buffer, offset in zip(buffers, offsets, strict=False):
        if buffer.size:
            span = top[buffer.lower : buffer.upper]
            np.maximum(span, offset + buffer.size, out=span)
    if ceilings is not None and (top > ceilings).any():
        return None, top
    arena, stays = int(top.max(initial=0)), len(placement.stays)
    allowed = np.full_like(top, arena) if ceilings is None else np.minimum(ceilings, arena)
    peak = int((_resident(top, allowed) + problem.elsewhere).max(initial=0))
    places = tuple(offsets[:stays]), tuple(offsets[stays : len(buffers)])
    return Placed(problem, placement, *places, arena, peak, allowed), top


def _packing(buffers: list[Buffer], capacity: int | None) -> list[int] | None:
    """Offsets below a capacity; None if none were found."""
    effort = Effort.NORMAL.divided(_PACKING_BUDGET_DIVISOR)
    found = allocate(buffers, capacity, effort=effort).offsets
    return None if found is None else found.tolist()


def _resident(top: Ints, allowed: Ints) -> Ints:
    """Bytes of the arena with pages in memory while each kernel runs: those touched before and not
    above a ceiling since."""
    pairs = zip(top.tolist(), allowed.tolist(), strict=True)
    resident = itertools.accumulate(
        pairs,
        lambda now, pair: min(max(now, pair[0]), pair[1]),
        initial=int(allowed.max(initial=0)),
    )
    return np.array([*resident][1:], dtype=np.int64)


def _above(ceilings: Ints) -> list[Buffer]:
    """Fixed buffers that occupy the space above the ceilings, so that the other buffers stay
    below."""
    edges = [0, *(np.flatnonzero(np.diff(ceilings)) + 1).tolist(), len(ceilings)]
    top = int(ceilings.max(initial=0))
    return [
        Buffer(f"above{a}", a, b, top - low, offset=low)
        for a, b in itertools.pairwise(edges)
        if b > a and (low := int(ceilings[a])) < top
    ]
