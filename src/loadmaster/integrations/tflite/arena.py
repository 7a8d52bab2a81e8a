"""The plan of TFLM's arena: addresses of all planned tensors, with room for scratch buffers,
checked as TFLM will have them."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise, zip_longest

import numpy as np

from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.problem import Buffer, Problem
from loadmaster.allocation.rules import problem_of
from loadmaster.allocation.verify import verify_buffers
from loadmaster.core.arrays import Ints
from loadmaster.core.errors import AllocationError, Violation
from loadmaster.core.names import unique_names
from loadmaster.integrations.tflite.lifetimes import (
    LARGEST_OFFSET,
    UNIT,
    ArenaTensor,
    Lifetimes,
    Span,
)
from loadmaster.integrations.tflite.scratch import Scratch, ScratchBuffer


@dataclass(frozen=True, slots=True)
class Request:
    """A buffer as TFLM asks for it: bytes, first and last scope, and its address if the plan has
    one."""

    bytes: int
    first: int
    last: int
    offset: int | None = None


def online_offsets(requests: Sequence[Request]) -> list[int]:
    """Addresses that TFLM gives. O(n^2) time for n buffers, as in TFLM itself."""
    placed: list[tuple[int, int]] = []
    offsets = [0] * len(requests)
    fixed = [index for index, request in enumerate(requests) if request.offset is not None]
    free = sorted(
        (index for index, request in enumerate(requests) if request.offset is None),
        key=lambda i: (-requests[i].bytes, -i),
    )
    for rank, index in enumerate((*fixed, *free)):
        request = requests[index]
        offsets[index] = (
            request.offset
            if request.offset is not None
            else _lowest_gap(request, placed, requests, (*fixed, *free))
        )
        insort(placed, (offsets[index], rank))
    return offsets


def _lowest_gap(
    request: Request,
    placed: Sequence[tuple[int, int]],
    requests: Sequence[Request],
    order: Sequence[int],
) -> int:
    """The end of the first buffer behind which there is room, among those that are there at the
    same time, by address."""
    candidate = 0
    for offset, rank in placed:
        other = requests[order[rank]]
        if other.first <= request.last and request.first <= other.last:
            if offset - candidate >= request.bytes:
                break
            candidate = max(candidate, offset + other.bytes)
    return candidate


def head_of(requests: Sequence[Request], offsets: Sequence[int]) -> int:
    """Bytes of the arena's head, in which TFLM has all that is planned."""
    return max(
        (offset + request.bytes for request, offset in zip(requests, offsets, strict=True)),
        default=0,
    )


@dataclass(frozen=True)
class ArenaPlan:
    """Addresses of the planned tensors in bytes, in the order of the file, and of the scratch
    buffers where TFLM will put them.

    Attributes
    ----------
    head, head_before
        Bytes that TFLM takes for what is planned: with this plan, and for the file as it was. Exact
        if scratch is known.
    lower_bound
        Bytes that no plan of the same tensors, scratch buffers and in-place pairs can do without.
    status
        ``optimal`` if the head is the least that there can be, else ``feasible``.
    growth
        If scratch is not known: bytes that the arena may take beyond what TFLM takes without a
        plan, at most.
    in_place
        Results that lie where an operand lay.
    fixed
        Tensors that the file has an address for, which they keep.
    """

    offsets: tuple[int, ...]
    scratch_offsets: tuple[int, ...]
    head: int
    head_before: int
    lower_bound: int
    status: str
    growth: int
    in_place: int
    fixed: int


def arena_problem(
    found: Lifetimes, scratch: Scratch, alignment: int = UNIT, pairs: Iterable[tuple[int, int]] = ()
) -> Problem:
    """The packing problem of an arena: tensors in the order of the file and scratch buffers, then
    what the file has addresses for; instant 0 is TFLM's scope -1.

    Raises
    ------
    AllocationError
        For an alignment that is not a power of two of at least 16.
    """
    buffers = arena_buffers(found, scratch, alignment)
    place = {id(owner): index for index, owner in enumerate(_free(found, scratch))}
    chosen = [tuple(place[id(found.tensors[index])] for index in pair) for pair in pairs]
    return problem_of(buffers, in_place=chosen) if chosen else problem_of(buffers)


def arena_buffers(found: Lifetimes, scratch: Scratch, alignment: int = UNIT) -> list[Buffer]:
    """The buffers of :func:`arena_problem`. Raises as it does."""
    if alignment < UNIT or alignment & (alignment - 1):
        raise AllocationError(
            f"--alignment {alignment}: TFLM needs a power of two of at least {UNIT}"
        )
    free = _free(found, scratch)
    fixed = _fixed([tensor for tensor in found.tensors if tensor.offset is not None])
    names = unique_names([owner.name for owner in free] + [buffer.id for buffer in fixed])
    buffers = [
        Buffer(
            name,
            owner.span[0] + 1,
            owner.span[1] + 2,
            owner.bytes,
            alignment if isinstance(owner, ArenaTensor) else UNIT,
        )
        for name, owner in zip(names, free, strict=False)
    ]
    return buffers + [
        replace(buffer, id=name) for buffer, name in zip(fixed, names[len(free) :], strict=True)
    ]


def _owners(found: Lifetimes, scratch: Scratch) -> tuple[ArenaTensor | ScratchBuffer, ...]:
    """Everything that TFLM places, in its order."""
    return (*found.tensors, *scratch.buffers)


def _free(found: Lifetimes, scratch: Scratch) -> list[ArenaTensor | ScratchBuffer]:
    """Everything that the file has no address for."""
    return [owner for owner in _owners(found, scratch) if getattr(owner, "offset", None) is None]


def _fixed(tensors: Sequence[ArenaTensor]) -> list[Buffer]:
    """Pinned buffers that take just the bytes of tensors with addresses, while any of these is
    there: overlaps that a file has are meant. O(tensors^2) comparisons of arrays."""
    low = np.array([tensor.offset for tensor in tensors], dtype=np.int64)
    high = low + [tensor.bytes for tensor in tensors]
    first, last = (np.array([tensor.span[end] for tensor in tensors]) for end in (0, 1))
    seen = np.zeros(len(tensors), dtype=bool)
    buffers = []
    for start in range(len(tensors)):
        group, waiting = [], [] if seen[start] else [start]
        seen[start] = True
        while waiting:
            one = waiting.pop()
            group.append(one)
            meets = (low < high[one]) & (low[one] < high) & ~seen
            meets &= (first <= last[one]) & (first[one] <= last)
            waiting += np.flatnonzero(meets).tolist()
            seen |= meets
        ends = sorted({int(end) for one in group for end in (low[one], high[one])})
        for begin, end in pairwise(ends):
            there = [tensors[one] for one in sorted(group) if low[one] <= begin < high[one]]
            if there:
                spans = _merged([(each.span[0] + 1, each.span[1] + 2) for each in there])
                name = "+".join(each.name for each in there)
                buffers.append(Buffer.during(name, spans, end - begin, offset=begin))
    return buffers


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Half-open spans that meet, as one."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def plan_arena(
    found: Lifetimes,
    scratch: Scratch,
    alignment: int = UNIT,
    pairs: Sequence[tuple[int, int]] = (),
    problem: Problem | None = None,
) -> ArenaPlan:
    """Find addresses for the tensors that the file has none for; of the plan and TFLM's own
    addresses the better. ``problem`` is that of :func:`arena_problem`, or one that knows more.

    Raises
    ------
    AllocationError
        If the arena would take 2 GiB.
    """
    problem = problem or arena_problem(found, scratch, alignment, pairs)
    answer = allocate(problem)
    tried = [[tensor.offset for tensor in found.tensors]]
    if answer.offsets is not None:
        planned = iter(answer.offsets.tolist())
        tried.append([next(planned) if at is None else at for at in tried[0]])
    settled = [
        placed
        for offsets in reversed(tried)
        if (placed := _settled(problem, found, scratch, offsets)) is not None
    ]
    if not settled:
        raise AllocationError("no addresses were found that hold: please report it with the file")
    head, offsets = min(settled, key=lambda placed: placed[0])
    if head >= LARGEST_OFFSET:
        raise AllocationError(
            f"the arena would take {head} bytes, and TFLM counts below 2^31: convert the model with"
            " smaller sizes"
        )
    count = len(found.tensors)
    free = len(_free(found, scratch)) - len(scratch.buffers)
    return ArenaPlan(
        offsets=tuple(offsets[:count]),
        scratch_offsets=tuple(offsets[count:]),
        head=head,
        head_before=without_plan(found, scratch)[0],
        lower_bound=answer.lower_bound,
        status=(
            "optimal"
            if head == answer.lower_bound or (answer.status == "optimal" and head == answer.peak)
            else "feasible"
        ),
        growth=0 if scratch.known or not free else _growth(found, offsets),
        in_place=len({other for one, other in pairs if offsets[one] == offsets[other]}),
        fixed=count - free,
    )


def without_plan(found: Lifetimes, scratch: Scratch) -> tuple[int, list[int]]:
    """Bytes that TFLM takes for the file as it is, with what addresses it has, and those that it
    gives."""
    requests = _requests(found, scratch, [tensor.offset for tensor in found.tensors])
    placed = online_offsets(requests)
    return head_of(requests, placed), placed


def _requests(found: Lifetimes, scratch: Scratch, offsets: Sequence[int | None]) -> list[Request]:
    """What TFLM's planner is asked for, with addresses as far as they are given."""
    owners = _owners(found, scratch)
    return [
        Request(owner.bytes, owner.span[0], owner.span[1], offset)
        for owner, offset in zip_longest(owners, offsets)
    ]


def _settled(
    problem: Problem, found: Lifetimes, scratch: Scratch, offsets: Sequence[int | None]
) -> tuple[int, list[int]] | None:
    """Head and addresses once TFLM has placed what a plan leaves to it; None if anything then lies
    over something else."""
    requests = _requests(found, scratch, offsets)
    placed = online_offsets(requests)
    head = head_of(requests, placed)
    return None if arena_violations(problem, found, scratch, placed, head) else (head, placed)


def arena_violations(
    problem: Problem, found: Lifetimes, scratch: Scratch, offsets: Sequence[int], head: int
) -> Sequence[Violation]:
    """What is wrong with addresses of all tensors and scratch buffers; those that the file has are
    right, and are those of its buffers in the problem."""
    return verify_buffers(problem, addresses_of(problem, found, scratch, offsets), head)


def addresses_of(
    problem: Problem, found: Lifetimes, scratch: Scratch, offsets: Sequence[int]
) -> Ints:
    """Addresses of a problem's buffers, given those of all tensors and scratch buffers."""
    owners = _owners(found, scratch)
    free = {id(owner) for owner in _free(found, scratch)}
    moved = [at for owner, at in zip(owners, offsets, strict=True) if id(owner) in free]
    return np.array([*moved, *problem.pin[len(free) :].tolist()], dtype=np.int64)


def _growth(found: Lifetimes, offsets: Sequence[int]) -> int:
    """The most bytes by which scratch that is not known can make the arena larger than it is
    without a plan.

    Beside tensors that take ``load`` bytes and end at ``top``, scratch of ``s`` bytes needs at
    least ``load + s`` without a plan, and ends at ``top + s`` or below with it. Tensors are there
    as TFLM knows them, which places both. O(tensors log tensors).
    """
    change: Counter[int] = Counter()
    born: dict[int, list[tuple[int, int]]] = {}
    for tensor, offset in zip(found.tensors, offsets, strict=False):
        first, last = tensor.span
        change[first] += tensor.bytes
        change[last + 1] -= tensor.bytes
        born.setdefault(first, []).append((-offset - tensor.bytes, last))
    load = most = 0
    highest: list[tuple[int, int]] = []
    for scope in sorted(change):
        load += change[scope]
        for item in born.get(scope, ()):
            heappush(highest, item)
        while highest and highest[0][1] < scope:
            heappop(highest)
        most = max(most, -highest[0][0] - load) if highest else most
    return most


def plan_entries(found: Lifetimes, offsets: Sequence[int]) -> tuple[int, ...]:
    """Addresses of all tensors of a file: what is not planned keeps the file's entry."""
    entries = list(found.entries)
    for tensor, offset in zip(found.tensors, offsets, strict=True):
        entries[tensor.number] = offset
    return tuple(entries)
