"""The plan of TFLM's arena: addresses of all planned tensors, with room for scratch buffers,
checked as TFLM will have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import zip_longest

import numpy as np

from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.problem import Buffer, Problem
from loadmaster.allocation.rules import problem_of
from loadmaster.allocation.verify import verify_buffers
from loadmaster.core.errors import AllocationError
from loadmaster.core.names import unique_names
from loadmaster.integrations.tflite.lifetimes import (
    LARGEST_OFFSET,
    UNIT,
    ArenaTensor,
    Lifetimes,
    Span,
)
from loadmaster.integrations.tflite.online_planner import Request, head_of, online_offsets
from loadmaster.integrations.tflite.planned_file import ONLINE
from loadmaster.integrations.tflite.scratch import Scratch, ScratchBuffer


@dataclass(frozen=True)
class ArenaPlan:
    """Addresses of the planned tensors in bytes, in the order of the file, and of the scratch
    buffers where TFLM will put them.

    Attributes
    ----------
    head, head_before
        Bytes that TFLM takes for what is planned: with this plan, and without any. Exact if scratch
        is known.
    lower_bound
        Bytes that no plan of the same tensors, scratch buffers and in-place pairs can do without.
    status
        ``optimal`` if the head is the least that there can be, else ``feasible``.
    growth
        If scratch is not known: bytes that the arena may take beyond what TFLM takes without a
        plan, at most.
    in_place
        Results that lie where an operand lay.
    """

    offsets: tuple[int, ...]
    scratch_offsets: tuple[int, ...]
    head: int
    head_before: int
    lower_bound: int
    status: str
    growth: int
    in_place: int


def arena_problem(
    found: Lifetimes, scratch: Scratch, alignment: int = UNIT, pairs: Iterable[tuple[int, int]] = ()
) -> Problem:
    """The packing problem of an arena: tensors in the order of the file, then scratch buffers;
    instant 0 is TFLM's scope -1.

    Raises
    ------
    AllocationError
        For an alignment that is not a power of two of at least 16.
    """
    buffers = arena_buffers(found, scratch, alignment)
    chosen = list(pairs)
    return problem_of(buffers, in_place=chosen) if chosen else problem_of(buffers)


def arena_buffers(found: Lifetimes, scratch: Scratch, alignment: int = UNIT) -> list[Buffer]:
    """The buffers of :func:`arena_problem`. Raises as it does."""
    if alignment < UNIT or alignment & (alignment - 1):
        raise AllocationError(
            f"--alignment {alignment}: TFLM needs a power of two of at least {UNIT}"
        )
    owners = _owners(found, scratch)
    names = unique_names(owner.name for owner in owners)
    return [
        Buffer.during(
            name,
            [(first + 1, last + 2) for first, last in _merged(owner.spans)],
            owner.bytes,
            alignment=alignment if isinstance(owner, ArenaTensor) else UNIT,
        )
        for name, owner in zip(names, owners, strict=True)
    ]


def _owners(found: Lifetimes, scratch: Scratch) -> tuple[ArenaTensor | ScratchBuffer, ...]:
    """Everything that TFLM places, in its order."""
    return (*found.tensors, *scratch.buffers)


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Spans that meet, as one."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
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
    """Find addresses; of the plan and TFLM's own addresses the better. ``problem`` is that of
    :func:`arena_problem`, or one that knows more.

    Raises
    ------
    AllocationError
        If no addresses hold, as where scratch buffers of subgraphs that are run more than once
        leave no way, or need 2 GiB.
    """
    problem = problem or arena_problem(found, scratch, alignment, pairs)
    answer = allocate(problem)
    count = len(found.tensors)
    own = online_offsets(_requests(found, scratch))[:count]
    planned = [] if answer.offsets is None else [answer.offsets[:count].tolist()]
    settled = [
        placed
        for offsets in (*planned, own)
        if (placed := _settled(problem, found, scratch, offsets)) is not None
    ]
    if not settled:
        raise AllocationError(
            "TFLM would put scratch buffers over tensors, as it forgets all runs of a subgraph but"
            " the last: leave the plan to TFLM"
        )
    head, offsets = min(settled, key=lambda placed: placed[0])
    if head >= LARGEST_OFFSET:
        raise AllocationError(
            f"the arena would take {head} bytes, and TFLM counts below 2^31: convert the model with"
            " smaller sizes"
        )
    return ArenaPlan(
        offsets=tuple(offsets[:count]),
        scratch_offsets=tuple(offsets[count:]),
        head=head,
        head_before=head_without_plan(found, scratch),
        lower_bound=answer.lower_bound,
        status=(
            "optimal"
            if head == answer.lower_bound or (answer.status == "optimal" and head == answer.peak)
            else "feasible"
        ),
        growth=0 if scratch.known else _growth(found, offsets),
        in_place=len({other for one, other in pairs if offsets[one] == offsets[other]}),
    )


def head_without_plan(found: Lifetimes, scratch: Scratch) -> int:
    """Bytes that TFLM takes if everything is left to it."""
    requests = _requests(found, scratch)
    return head_of(requests, online_offsets(requests))


def _requests(
    found: Lifetimes, scratch: Scratch, offsets: Sequence[int | None] = ()
) -> list[Request]:
    """What TFLM's planner is asked for, with the lifetimes that it knows, and addresses as far as
    they are given."""
    owners = _owners(found, scratch)
    return [
        Request(owner.bytes, owner.spans[-1][0], owner.spans[-1][1], offset)
        for owner, offset in zip_longest(owners, offsets)
    ]


def _settled(
    problem: Problem, found: Lifetimes, scratch: Scratch, offsets: Sequence[int]
) -> tuple[int, list[int]] | None:
    """Head and addresses once TFLM has placed scratch buffers around a plan; None if anything then
    lies over something else."""
    requests = _requests(found, scratch, offsets)
    placed = online_offsets(requests)
    head = head_of(requests, placed)
    return (
        None if verify_buffers(problem, np.array(placed, dtype=np.int64), head) else (head, placed)
    )


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
        first, last = tensor.spans[-1]
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
    """Addresses of all tensors of a file: constants and variables are left to TFLM."""
    entries = [ONLINE] * found.tensor_count
    for tensor, offset in zip(found.tensors, offsets, strict=True):
        entries[tensor.number] = offset
    return tuple(entries)
