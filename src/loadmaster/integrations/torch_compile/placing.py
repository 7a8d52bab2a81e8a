"""Plans profiled calls under a budget: makes the kernel sequence, places and moves tensors, and
finds all addresses in the arena."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.fit_or_tighten import fit_or_tighten
from loadmaster.allocation.problem import Buffer
from loadmaster.core.arrays import Floats, Ints, column_of
from loadmaster.core.effort import Effort
from loadmaster.core.errors import BudgetError, CapacityError
from loadmaster.core.provenance import Label, Provenance
from loadmaster.core.units import format_bytes
from loadmaster.integrations.torch_compile.captured import Owner, views
from loadmaster.integrations.torch_compile.cpu_memory import CpuMemory
from loadmaster.integrations.torch_compile.updates import Traced
from loadmaster.placement.autotm.engine import PlacementSolution, place_by_program
from loadmaster.placement.decisions import (
    Mode,
    Stay,
    TensorPlacement,
    all_fast,
    blocks_of,
    fast_bytes,
)
from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelOperand,
    KernelSequence,
    StoredKind,
    StoredTensor,
    least_bytes,
)
from loadmaster.placement.timing import time_moves

if TYPE_CHECKING:
    from loadmaster.integrations.torch_compile.cuda_memory import CudaMemory

DeviceMemory: TypeAlias = "CpuMemory | CudaMemory"
"""Fast and slow memory of one budget."""
_SMALL, _SMALL_SHARE = 64 << 10, 0.02
"""Most bytes of an intermediate tensor that never moves, and the share of the fast memory that all
of these may take. Starting a copy and waiting for its thread takes at least 0.2 ms, in which a disk
moves 400 KiB; every normalisation has two such tensors."""


def place_for_runtime(
    sequence: KernelSequence, limits: Ints, mode: Mode, keep_between_steps: bool = False
) -> TensorPlacement:
    """Find a placement within ``limits``, the bytes that tensors and workspaces may take while each
    kernel runs, shape (kernels,).

    Small tensors stay in fast memory for their whole lifetimes, unless the other tensors have no
    placement then. See `_place` for ``keep_between_steps``. Raises `CapacityError`.
    """
    small, lives = _choose_small(sequence, limits), sequence.lifetimes.tolist()
    stays = tuple(Stay(t, *lives[t]) for t in sorted(small))
    left = limits.astype(np.int64)
    for stay in stays:
        left[stay.start : stay.end] -= sequence.sizes[stay.tensor]
    if small and left.min() >= 0:
        kernels = tuple(
            replace(kernel, operands=tuple(o for o in kernel.operands if o.tensor not in small))
            for kernel in sequence.kernels
        )
        others = replace(sequence, kernels=kernels)
        with suppress(CapacityError):
            found = _place(others, left, mode, keep_between_steps)
            return replace(found, stays=(*found.stays, *stays))
    return _place(sequence, limits, mode, keep_between_steps)


def _choose_small(sequence: KernelSequence, limits: Ints) -> frozenset[int]:
    """Choose small intermediate tensors, smallest first, up to their share of the fast memory."""
    order = np.argsort(sequence.sizes, kind="stable")
    sizes, most = sequence.sizes[order], _SMALL_SHARE * int(limits.max(initial=0))
    return frozenset(
        t
        for t in order[(sizes <= _SMALL) & (sizes.cumsum() <= most)].tolist()
        if sequence.tensors[t].kind is StoredKind.INTERMEDIATE and sequence.uses[t]
    )


def _place(
    sequence: KernelSequence, limits: Ints, mode: Mode, keep_between_steps: bool
) -> TensorPlacement:
    """Find a placement in which any tensor may move. Raises `CapacityError`.

    Weights are in slow memory when a step begins, and weights and outputs when it ends, unless
    ``keep_between_steps`` lets them stay in fast memory.
    """
    loads = not keep_between_steps and any(
        tensor.kind is not StoredKind.INTERMEDIATE for tensor in sequence.tensors
    )
    if loads:
        sequence, limits = _with_load_and_end(sequence), np.concatenate(([0], limits, [0]))
    found = place_by_program(sequence, limits, Mode.SYNC)
    placement = _overlapped(found, limits) if mode is Mode.ASYNC else found.placement
    return _without_load_and_end(placement) if loads else placement


def _with_load_and_end(sequence: KernelSequence) -> KernelSequence:
    """Return the sequence with a kernel before it that reads all weights at no cost, and a kernel
    after it without operands.

    With limits of 0 bytes for these two kernels, all tensors alive there must be in slow memory.
    """
    weights = (t for t, tensor in enumerate(sequence.tensors) if tensor.kind is StoredKind.WEIGHT)
    load = Kernel(
        "load",
        "load",
        tuple(KernelOperand(t, read=True, write=False) for t in weights),
        (Algorithm("load", 0.0),),
    )
    end = Kernel("end", "end", (), (Algorithm("end", 0.0),))
    return replace(sequence, kernels=(load, *sequence.kernels, end))


def _without_load_and_end(placement: TensorPlacement) -> TensorPlacement:
    """Return the placement without the two kernels of `_with_load_and_end`."""

    def earlier(span: Any) -> Any:
        """Return a stay or a move, one kernel earlier."""
        return replace(span, start=span.start - 1, end=span.end - 1)

    stays, moves = (tuple(map(earlier, spans)) for spans in (placement.stays, placement.moves))
    return TensorPlacement(stays, moves, placement.algorithms[1:-1])


def _overlapped(found: PlacementSolution, limits: Ints) -> TensorPlacement:
    """Return a placement whose copies overlap kernels as far as ``limits`` allow: the engine's
    schedule of the paths that it found for copies that block.

    Paths found for overlapping copies are as fast, but move more bytes. If the copies under way
    take too much room, they block.
    """
    if found.search is None or found.paths is None:
        return found.placement
    sequence = found.search.sequence
    placement, _ = replace(found.search, link=sequence.link).timed(found.paths)
    fits = (fast_bytes(sequence, placement) <= limits).all()
    return placement if fits else found.placement


_ROUNDS = 12
"""Rounds of placing and packing at the user's budget."""
_TRIAL_ROUNDS = 4
"""Rounds of placing and packing in trials of other budgets."""
_SEARCH_TOLERANCE = 0.01
"""Step of the search for the smallest budget, as a share of its lower limit."""
_PACKING_BUDGET_DIVISOR = 128
"""Divisor of each packing's budget of nodes. A long search that fails stores 100 MiB of states,
which would be the peak of the step that plans; another placement in the next round helps as
much."""
_READS_AHEAD = (1, 2, 4)
"""Memory left free for prefetching in trials, as multiples of the largest tensor that moves."""
_FORBIDDEN = float("inf")
_KINDS = {
    Owner.PLAN: StoredKind.INTERMEDIATE,
    Owner.CALLER: StoredKind.WEIGHT,
    Owner.RETURNED: StoredKind.OUTPUT,
}
_INPUTS, _RESULTS, _KEPT, _GRADIENTS, _OTHER_GRAPHS, _UNPLANNED, _OPERANDS = (
    "inputs, and parameters that do not move",
    "results",
    "results of earlier graphs and steps",
    "gradients that do not move",
    "parameters of other graphs",
    "what operators allocate outside of the plan",
    "the operator itself",
)
_ADVICE = {
    _INPUTS: "a smaller batch gives back what inputs take of it",
    _RESULTS: "a compiled module that returns only its loss gives back up to all of it",
    _KEPT: "deleting the outputs of a step before the next one begins gives back up to all of it",
    _GRADIENTS: (
        "the option optimizer gives back up to all of it, where parameters have no hooks and belong"
        " to one graph"
    ),
    _OTHER_GRAPHS: "one graph without breaks (fullgraph=True) gives back up to all of it",
    _UNPLANNED: "a smaller batch gives back some of it",
    _OPERANDS: "a smaller batch, shorter sequences or a smaller layer make it smaller",
}
"""Advice by the kind of memory that takes most of the budget. All kinds but the operator itself are
outside of the arena."""


@dataclass(frozen=True)
class GraphProblem:
    """A graph as a placement problem.

    Attributes
    ----------
    sequence
        The calls as kernels, and the storages that the plan places as tensors.
    storage
        The storage of every tensor.
    elsewhere
        Bytes of fast memory outside of the arena while each kernel runs, shape (kernels,):
        parameters that do not move, inputs, results so far, other graphs' parameters, and
        allocations of operators that cannot be planned.
    holders
        ``elsewhere`` by kind of memory, a key of `_ADVICE`.
    """

    sequence: KernelSequence
    storage: tuple[int, ...]
    elsewhere: Ints
    holders: Mapping[str, Ints] = field(default_factory=dict)

    def ceilings(self, budget: int) -> Ints:
        """Return the bytes that a budget leaves to the arena while each kernel runs, shape
        (kernels,)."""
        return (budget - self.elsewhere) // self.sequence.alignment * self.sequence.alignment

    def needed(self) -> Ints:
        """Return the least bytes of fast memory with which each kernel can run, shape
        (kernels,)."""
        return least_bytes(self.sequence) + self.elsewhere

    def peak(self) -> int:
        """Return the peak in bytes of fast memory if no tensor moves, for an arena without gaps."""
        return int((self.sequence.live_bytes() + self.elsewhere).max(initial=0))


@dataclass(frozen=True)
class Placed:
    """A placement with addresses.

    Attributes
    ----------
    stays, workspaces
        Offset in the arena of every stay, and of every kernel's workspace.
    arena
        Size of the arena in bytes.
    peak
        Most bytes of fast memory in use at once, in the arena and outside of it.
    ceilings
        Highest address that buffers may reach while each kernel runs, shape (kernels,).
    """

    problem: GraphProblem
    placement: TensorPlacement
    stays: tuple[int, ...]
    workspaces: tuple[int, ...]
    arena: int
    peak: int
    ceilings: Ints

    @cached_property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return time_moves(self.problem.sequence, self.placement).total


class Surroundings(NamedTuple):
    """Bytes of fast memory that other graphs of the model take while a graph runs, and the budget.

    Attributes
    ----------
    persistent
        Parameters, buffers and optimizer state of other graphs.
    gradients
        Gradients of other graphs while the backward part runs.
    results
        Results of earlier graphs and steps that callers still hold, while the forward part and
        while the backward part runs.
    offload_idle
        Whether every graph offloads its parameters while others run.
    budget
        None: no limit.
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
) -> GraphProblem:
    """Return the placement problem of a graph whose calls take ``seconds``, shape (calls,).

    Of the caller's storages and of gradients, only those in ``moving`` may move. ``shifts`` are, by
    storage, the bytes from the beginning of its first page in a file of weights.
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
            KernelOperand(numbers[s], s in call.reads, s in call.writes, slow_seconds=_FORBIDDEN)
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
    if not memory.shrinks:  # an arena of constant size must leave room for the most
        elsewhere[:] = elsewhere.max(initial=0)
    costs = (Provenance(Label.MEASURED, "each kernel alone, on this machine", len(kernels)),)
    sequence = KernelSequence(name, tensors, tuple(kernels), link, alignment, costs=costs)
    return GraphProblem(sequence, tuple(planned), elsewhere, holders)


def _holders(traced: Traced, away: frozenset[int], around: Surroundings) -> dict[str, Ints]:
    """Return the bytes of fast memory outside of the arena while each kernel runs, by kind of
    memory, shapes (kernels,); storages in ``away`` are in the arena or in slow memory."""
    storages, boundary = traced.storages, traced.parts[0].end
    holders = {holder: np.zeros(len(traced.calls), dtype=np.int64) for holder in _ADVICE}
    holders[_OTHER_GRAPHS] += around.persistent
    holders[_INPUTS] += traced.bytes_of(
        s for s, one in enumerate(storages) if one.owner is Owner.CALLER and s not in away
    )
    holders[_GRADIENTS][boundary:] += around.gradients
    holders[_KEPT][:boundary] += around.results[0]
    holders[_KEPT][boundary:] += around.results[1]
    second = {view.storage for part in traced.parts[1:] for view in views(part.returned)}
    backwards = reversed([*enumerate(traced.calls)])
    made = {s: k for k, call in backwards for s in call.writes}  # by the first of its writers
    for s, k in made.items():
        if storages[s].owner is Owner.RETURNED and s not in away:
            holders[_GRADIENTS if s in second else _RESULTS][k:] += storages[s].bytes
    holders[_UNPLANNED] += column_of(traced.profiles, "outside", np.int64)
    return holders


class TooSmall(BudgetError):
    """Raised for a budget below ``smallest``, the least bytes for tensors that work; ``why`` gives
    the reason."""

    def __init__(self, budget: int, smallest: int, why: str) -> None:
        super().__init__(f"fast_memory {format_bytes(budget)} is too small: {why}")
        self.smallest, self.why = smallest, why


@dataclass(frozen=True)
class GraphSearch:
    """Search for a placement of one graph, for any budget of fast memory in bytes.

    First the search chooses which of the caller's storages move, as if they could stay in fast
    memory between steps. Storages that would never leave it then keep PyTorch's own memory.

    Attributes
    ----------
    make
        Returns the problem in which a given subset of ``movable`` moves.
    movable
        The caller's storages, and gradients, that may move.
    offload_idle
        Whether all movable storages move.
    objects
        Bytes of the user's budget that Python objects take.
    provisional
        Whether the plan will be made again with measured times. Then prefetching with more free
        memory, which takes most of the planning time, is not tried.
    """

    make: Callable[[frozenset[int]], GraphProblem]
    movable: frozenset[int]
    mode: Mode
    offload_idle: bool
    objects: int
    provisional: bool

    @cached_property
    def unmoved(self) -> Placed:
        """All tensors in the fast memory, without a limit."""
        problem = self.make(frozenset())
        placed = _pack(problem, all_fast(problem.sequence), None)
        assert isinstance(placed, Placed)
        return placed

    def attempt(self, budget: int | None) -> Placed | int:
        """Return a placement with addresses, or the index of the kernel at which the search failed.
        A budget of None has no limit."""
        if budget is None or (self.unmoved.peak <= budget and not self.offload_idle):
            return self.unmoved
        needed = self.make(self.movable).needed()
        if needed.max(initial=0) > budget:
            return int(needed.argmax())
        found = self.within(budget, _ROUNDS)
        return found if isinstance(found, int) else self._with_room_to_prefetch(found, budget)

    def within(self, budget: int, rounds: int) -> Placed | int:
        """Return a placement found in at most ``rounds`` rounds, or the index of the kernel at
        which the search failed."""
        staying = frozenset() if self.offload_idle else _staying(self.make(self.movable), budget)
        found = _place_and_pack(self.make(self.movable - staying), budget, self.mode, rounds)
        if isinstance(found, int) and staying:
            found = _place_and_pack(self.make(self.movable), budget, self.mode, rounds)
        return found

    def _with_room_to_prefetch(self, best: Placed, budget: int) -> Placed:
        """Return the fastest of placement ``best`` and placements that leave more memory for
        prefetching.

        If the tensors that stay take all memory, a prefetch starts only after the last use of the
        tensor read before it, and kernels wait for it.
        """
        tensors = best.problem.sequence.tensors
        moved = [
            tensors[move.tensor].bytes
            for move in best.placement.moves
            if tensors[move.tensor].kind is not StoredKind.INTERMEDIATE
        ]
        if self.mode is not Mode.ASYNC or self.offload_idle or self.provisional or not moved:
            return best
        everything = self.make(self.movable)
        tried = {self.movable.intersection(best.problem.storage)}
        for number in _READS_AHEAD:
            moving = self.movable - _staying(everything, budget - number * max(moved))
            if _seconds_of_reads(everything, moving) >= best.seconds:
                break  # more free memory means more reads
            if moving in tried:
                continue
            tried.add(moving)
            found = _place_and_pack(self.make(moving), budget, self.mode, _TRIAL_ROUNDS)
            if not isinstance(found, int) and found.seconds < best.seconds:
                best = found
        return best

    def refusal(self, budget: int, failed: int) -> TooSmall:
        """Return the error for a budget that cannot be kept: the kernel that ``failed``, its bytes,
        and the smallest budget that works.

        The smallest budget is the largest need of any kernel if that can be packed; else it is
        searched for, to about 1 %.
        """
        problem = self.make(self.movable)
        needed = problem.needed()
        low = max(int(needed.max(initial=0)), budget)
        enough = max(self.unmoved.peak, low)
        sizes = range(low, enough + 1, max(int(low * _SEARCH_TOLERANCE), 1))

        def works(size: int) -> bool:
            """Return whether a budget is enough for a trial."""
            return isinstance(self.within(size, _TRIAL_ROUNDS), Placed)

        found = 0 if low == enough or works(low) else bisect_left(sizes, True, 1, key=works)
        high = sizes[found] if found < len(sizes) else enough
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
            " and others that do not move; with kernels in these blocks the smallest budget that"
            f" works for this graph is {whole} bytes ({format_bytes(whole)}{objects}), if results"
            f" of earlier steps are dropped; {_advice(problem, failed, least)}",
        )


def _advice(problem: GraphProblem, failed: int, least: int) -> str:
    """Return which kind of memory takes most of the fast memory at kernel ``failed``, and the
    change that reduces it most."""
    held = {holder: int(bytes[failed]) for holder, bytes in problem.holders.items()}
    held[_OPERANDS] = least - sum(held.values())
    most = max(held, key=held.__getitem__)
    return f"most is held by {most}, {format_bytes(held[most])}: {_ADVICE[most]}"


def _seconds_of_reads(problem: GraphProblem, moving: frozenset[int]) -> float:
    """Return the seconds of reading every weight that moves once, a lower bound of a step."""
    read = sum(
        tensor.bytes
        for s, tensor in zip(problem.storage, problem.sequence.tensors, strict=True)
        if s in moving and tensor.kind is StoredKind.WEIGHT
    )
    link = problem.sequence.link
    return read / max(link.to_fast, link.asynchronous_to_fast)


def _staying(problem: GraphProblem, budget: int) -> frozenset[int]:
    """Choose the caller's storages, and gradients, that stay in fast memory for their whole
    lifetimes."""
    sequence = problem.sequence
    if all(tensor.kind is StoredKind.INTERMEDIATE for tensor in sequence.tensors):
        return frozenset()
    try:
        limits = np.maximum(problem.ceilings(budget), 0)
        placement = place_for_runtime(sequence, limits, Mode.SYNC, keep_between_steps=True)
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


def _place_and_pack(problem: GraphProblem, budget: int, mode: Mode, rounds: int) -> Placed | int:
    """Place and pack in turn, with lower limits after every packing that fails. Returns the index
    of a kernel above its ceiling if no packing is found.

    Slightly lower limits often give the same placement, which is not packed again.
    """
    sequence, ceilings, needed = problem.sequence, problem.ceilings(budget), problem.needed()
    failed = int(needed.argmax())
    place = partial(place_for_runtime, sequence, mode=mode)
    packed = cache(partial(_pack, problem, ceilings=ceilings))

    def pack(placement: TensorPlacement, number: int) -> Placed | Ints:
        """Return the packed placement, or, by kernel, the bytes by which it exceeds its ceiling."""
        nonlocal failed
        found = packed(placement)
        if isinstance(found, Placed):
            return found
        over: Ints = np.maximum(found - ceilings, 0)
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
    problem: GraphProblem, placement: TensorPlacement, ceilings: Ints | None
) -> Placed | Ints:
    """Find addresses below the ceiling of every kernel.

    Returns the placement with addresses, or, if none were found, the highest address in use at
    every kernel, shape (kernels,).
    """
    sequence, step = problem.sequence, problem.sequence.alignment
    lower, upper, size = blocks_of(sequence, placement)
    size += -size % step
    rows = np.column_stack([lower, upper, size]).tolist()
    buffers = [
        Buffer(f"b{i}", start, end, count, alignment=step)
        for i, (start, end, count) in enumerate(rows)
    ]
    effort, found = Effort.NORMAL.divided(_PACKING_BUDGET_DIVISOR), None
    if ceilings is not None:
        below = [*buffers, *_ceiling_buffers(ceilings)]
        found = allocate(below, int(ceilings.max(initial=0)), effort=effort).offsets
    if found is None:  # to find the kernels above their ceilings
        found = allocate(buffers, effort=effort).offsets
    assert found is not None
    offsets = found[: len(buffers)]
    top = np.zeros(len(sequence.kernels), dtype=np.int64)
    for start, end, high in zip(lower, upper, np.where(size > 0, offsets + size, 0), strict=True):
        np.maximum(top[start:end], high, out=top[start:end])
    if ceilings is not None and (top > ceilings).any():
        return top
    arena, stays = int(top.max(initial=0)), len(placement.stays)
    allowed = np.full_like(top, arena) if ceilings is None else np.minimum(ceilings, arena)
    peak = int((_resident(top, allowed) + problem.elsewhere).max(initial=0))
    places, workspaces = offsets[:stays].tolist(), offsets[stays:].tolist()
    return Placed(problem, placement, tuple(places), tuple(workspaces), arena, peak, allowed)


def _resident(top: Ints, allowed: Ints) -> Ints:
    """Return the bytes of the arena whose pages are in memory while each kernel runs, shape
    (kernels,): touched before, and not above a ceiling since."""
    pairs = zip(top.tolist(), allowed.tolist(), strict=True)
    resident = itertools.accumulate(
        pairs,
        lambda now, pair: min(max(now, pair[0]), pair[1]),
        initial=int(allowed.max(initial=0)),
    )
    return np.array([*resident][1:], dtype=np.int64)


def _ceiling_buffers(ceilings: Ints) -> list[Buffer]:
    """Return fixed buffers that take the space above the ceilings, so that other buffers stay
    below."""
    edges = [0, *(np.flatnonzero(np.diff(ceilings)) + 1).tolist(), len(ceilings)]
    top = int(ceilings.max(initial=0))
    return [
        Buffer(f"above{a}", a, b, top - low, offset=low)
        for a, b in itertools.pairwise(edges)
        if b > a and (low := int(ceilings[a])) < top
    ]
