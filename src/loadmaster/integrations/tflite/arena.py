"""Plans TFLM's arena: addresses of all tensors and room for scratch buffers, checked with the
addresses that TFLM will use."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.native import lower_bound
from loadmaster.allocation.problem import Buffer, Problem
from loadmaster.allocation.rules import problem_of
from loadmaster.allocation.verify import verify_buffers
from loadmaster.core.arrays import Ints
from loadmaster.core.effort import Effort
from loadmaster.core.errors import AllocationError
from loadmaster.core.names import unique_names
from loadmaster.integrations.tflite.lifetimes import (
    LARGEST_OFFSET,
    NEVER,
    UNIT,
    ArenaBuffer,
    Lifetimes,
)
from loadmaster.integrations.tflite.scratch import Scratch


@dataclass(frozen=True)
class TensorArena:
    """Tensors and scratch buffers of an arena."""

    found: Lifetimes
    scratch: Scratch

    @cached_property
    def owners(self) -> tuple[ArenaBuffer, ...]:
        """All buffers in TFLM's order: tensors in the order of the file, then scratch buffers."""
        return (*self.found.tensors, *self.scratch.buffers)


def online_offsets(owners: Sequence[ArenaBuffer]) -> list[int]:
    """Return the addresses of TFLM's greedy planner for all buffers, around those that have one.
    O(n^2) time for n buffers, as in TFLM itself."""
    placed: list[tuple[int, int, ArenaBuffer]] = []
    offsets = [0] * len(owners)
    # Given addresses come first, in the order of the file; then the largest buffers.
    order = sorted(
        range(len(owners)),
        key=lambda i: (1, -owners[i].bytes, -i) if owners[i].offset is None else (0, 0, i),
    )
    for rank, index in enumerate(order):
        owner = owners[index]
        offset = _lowest_gap(owner, placed) if owner.offset is None else owner.offset
        offsets[index] = offset
        insort(placed, (offset, rank, owner))
    return offsets


def _lowest_gap(owner: ArenaBuffer, placed: Iterable[tuple[int, int, ArenaBuffer]]) -> int:
    """Return the lowest address behind a buffer, among ``placed`` ones (by address) alive at the
    same time, where ``owner`` fits."""
    candidate = 0
    for offset, _, other in placed:
        if other.span[0] <= owner.span[1] and owner.span[0] <= other.span[1]:
            if offset - candidate >= owner.bytes:
                break
            candidate = max(candidate, offset + other.bytes)
    return candidate


def head_of(owners: Sequence[ArenaBuffer], offsets: Sequence[int]) -> int:
    """Return the bytes of the arena's head, the part with all planned buffers."""
    return max((at + each.bytes for each, at in zip(owners, offsets, strict=True)), default=0)


@dataclass(frozen=True)
class ArenaPlan:
    """A plan of TFLM's arena.

    Attributes
    ----------
    offsets
        Addresses in bytes of the planned tensors, in the order of the file, and of the scratch
        buffers where TFLM will put them.
    head, head_before
        Bytes of the arena's head with this plan, and for the original file. Exact if scratch is
        known.
    lower_bound
        Lower bound of the head for the same tensors, scratch buffers and in-place pairs.
    growth
        If scratch is unknown: most bytes by which the arena may be larger than without a plan.
    in_place
        Number of results at the address of an operand.
    fixed
        Number of tensors that keep their address in the file.
    """

    offsets: tuple[int, ...]
    head: int
    head_before: int
    lower_bound: int
    growth: int
    in_place: int
    fixed: int

    @property
    def status(self) -> str:
        """``optimal`` if the head is proven to be the least, else ``feasible``."""
        return "optimal" if self.head == self.lower_bound else "feasible"


def arena_problem(
    arena: TensorArena, alignment: int = UNIT, pairs: Iterable[tuple[int, int]] = ()
) -> Problem:
    """Return the packing problem of an arena, whose buffers are its owners in order, then covers of
    tensors that overlap in the file; instant 0 is TFLM's scope -1.

    ``pairs`` are the in-place pairs.

    Raises
    ------
    AllocationError
        For an alignment that is not a power of two of at least 16.
    """
    return problem_of(arena_buffers(arena, alignment), in_place=list(pairs))


def arena_buffers(arena: TensorArena, alignment: int = UNIT) -> list[Buffer]:
    """Return the buffers of :func:`arena_problem`. Raises the same errors."""
    if alignment < UNIT or alignment & (alignment - 1):
        raise AllocationError(
            f"--alignment {alignment}: TFLM needs a power of two of at least {UNIT}"
        )
    last = max((owner.span[1] for owner in arena.owners), default=0)
    owners = [replace(o, span=(NEVER, last)) if o.lasts else o for o in arena.owners]
    buffers = []
    covers, covered = _covers_of(owners[: len(arena.found.tensors)])
    for position, owner in enumerate(owners):
        step = alignment if position < len(arena.found.tensors) else UNIT
        step = step if owner.offset is None else 1
        first, last = owner.span
        made = Buffer(owner.name, first + 1, last + 2, owner.bytes, step, offset=owner.offset)
        if position in covered:
            made = replace(made, id=f"{owner.name} in the file", size=0)
        buffers.append(made)
    buffers += covers
    names = unique_names(buffer.id for buffer in buffers)
    return [replace(buffer, id=name) for buffer, name in zip(buffers, names, strict=True)]


def _covers_of(tensors: Sequence[ArenaBuffer]) -> tuple[list[Buffer], set[int]]:
    """Return pinned buffers without overlaps that cover the tensors that overlap in the file, which
    is intended, and the indices of these tensors. O(tensors^2) array comparisons."""
    fixed = [number for number, tensor in enumerate(tensors) if tensor.offset is not None]
    low = np.array([tensors[number].offset for number in fixed], dtype=np.int64)
    high = low + [tensors[number].bytes for number in fixed]
    first, last = (np.array([tensors[number].span[end] for number in fixed]) for end in (0, 1))
    label = np.arange(len(fixed))
    for one in range(len(fixed)):
        meets = (low < high[one]) & (low[one] < high)
        meets &= (first <= last[one]) & (first[one] <= last)
        label[np.isin(label, label[meets])] = one
    covers, covered = list[Buffer](), set[int]()
    for group in dict.fromkeys(label.tolist()):
        members = np.flatnonzero(label == group).tolist()
        if len(members) == 1:
            continue
        covered |= {fixed[one] for one in members}
        ends = sorted({int(end) for one in members for end in (low[one], high[one])})
        for begin, end in pairwise(ends):
            there = [tensors[fixed[one]] for one in members if low[one] <= begin < high[one]]
            spans = [(each.span[0] + 1, each.span[1] + 2) for each in there]
            name = "+".join(each.name for each in there)
            if there:
                covers.append(Buffer.during(name, spans, end - begin, offset=begin))
    return covers, covered


def plan_arena(arena: TensorArena, problem: Problem, effort: Effort = Effort.NORMAL) -> ArenaPlan:
    """Return the better of our plan and TFLM's own addresses, for tensors without an address in the
    file. ``problem`` is that of :func:`arena_problem`, or a relaxed one.

    Raises
    ------
    AllocationError
        If the arena would take 2 GiB.
    """
    answer, owners = allocate(problem, effort=effort), arena.owners
    tensors = len(arena.found.tensors)
    tried, settled = [owners], []
    if answer.offsets is not None:
        pairs = zip(arena.found.tensors, answer.offsets.tolist(), strict=False)
        ours = (replace(tensor, offset=offset) for tensor, offset in pairs)
        tried.insert(0, (*ours, *arena.scratch.buffers))
    for given in tried:
        # TFLM places the remaining buffers, which may then overlap others.
        offsets = online_offsets(given)
        needed = head_of(owners, offsets)
        if not verify_buffers(problem, addresses_of(problem, offsets), needed):
            settled.append((needed, offsets))
    if not settled:
        raise AllocationError("no addresses were found that hold: please report it with the file")
    head, offsets = min(settled, key=lambda each: each[0])
    if head >= LARGEST_OFFSET:
        raise AllocationError(
            f"the arena would take {head} bytes, and TFLM counts below 2^31: convert the model with"
            " smaller sizes"
        )
    fixed, bound = sum(owner.offset is not None for owner in owners), answer.lower_bound
    if arena.scratch.source == "probed":
        # Of the buffers of a kernel, which may lie apart, the sum is known, or a bound of it.
        apart = range(tensors, len(owners) if arena.scratch.bounds else tensors)
        bound = lower_bound(problem.only(np.delete(np.arange(len(problem)), apart))).bytes
    return ArenaPlan(
        offsets=tuple(offsets),
        head=head,
        # The last that was tried is what TFLM does by itself.
        head_before=needed,
        lower_bound=bound,
        growth=0 if arena.scratch.known or fixed == tensors else _growth(arena.found, offsets),
        in_place=len(
            {other for one, other, _ in problem.in_place if offsets[one] == offsets[other]}
        ),
        fixed=fixed,
    )


def addresses_of(problem: Problem, offsets: Sequence[int]) -> Ints:
    """Return the addresses of a problem's buffers, given those of all tensors and scratch
    buffers."""
    return np.array([*offsets, *problem.pin[len(offsets) :].tolist()], dtype=np.int64)


def _growth(found: Lifetimes, offsets: Sequence[int]) -> int:
    """Return the most bytes by which unknown scratch buffers can make the arena larger than it is
    without a plan.

    At a scope where tensors have ``load`` bytes and end at ``top``, scratch of ``s`` bytes needs at
    least ``load + s`` bytes without a plan, and at most ``top + s`` with it. O(tensors^2) array
    comparisons.
    """
    first, last = np.array([tensor.span for tensor in found.tensors]).T
    size = np.array([tensor.bytes for tensor in found.tensors])
    end, most = size + offsets, 0
    for scope in {*first.tolist(), *(last + 1).tolist()}:
        alive = (first <= scope) & (scope <= last)
        most = max(most, int(end[alive].max(initial=0) - size[alive].sum()))
    return most
