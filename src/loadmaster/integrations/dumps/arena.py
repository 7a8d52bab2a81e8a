"""One memory of another planner's dump: its buffers as a packing problem, and their addresses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadmaster.allocation.problem import Problem
from loadmaster.allocation.rules import problem_of
from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.errors import AllocationError
from loadmaster.core.names import unique_names


class DumpedBuffer(NamedTuple):
    """A buffer of a dump: alive from instant ``first`` to ``last``, both inclusive, ``size`` bytes
    at ``offset`` (None: unknown).

    ``carried``: a loop or a conditional passes the buffer on without a copy, so it shares the
    address of its source.
    """

    name: str
    first: int
    last: int
    size: int
    offset: int | None = None
    carried: bool = False


@dataclass(frozen=True)
class DumpedArena:
    """One memory of a dump.

    Attributes
    ----------
    name
        Name of the memory in the dump.
    problem
        The buffers, with lifetimes [lower, upper) and the planner's alignment.
    offsets
        The planner's addresses in bytes, one per buffer; None if the dump has none.
    taken
        Bytes of the planner's arena: the highest address in use, else ``stated``; None if unknown.
    stated
        Bytes of the arena as stated in the dump; None if not stated.
    """

    name: str
    problem: Problem
    offsets: Ints | None
    taken: int | None
    stated: int | None = None


def arena_of(
    source: Path,
    name: str,
    buffers: Sequence[DumpedBuffer],
    alignment: int,
    *,
    stated: int | None = None,
    shared: bool = False,
    in_place: Sequence[tuple[int, int]] = (),
) -> DumpedArena:
    """Make an arena of the buffers of a dump. O(n log n).

    Parameters
    ----------
    source, name
        The file, and the name of the arena in the dump.
    buffers
        In any order.
    alignment
        The planner's alignment in bytes; reduced if its own addresses do not keep it.
    stated
        Bytes of the arena as stated in the dump.
    shared
        Whether buffers alive at the same time at one address are one storage, and must stay
        together.
    in_place
        Pairs of buffers, by position, that may share their address.

    Raises
    ------
    AllocationError
        If a lifetime ends before it begins, or a number is too large; the message begins with the
        file.
    """
    for buffer in buffers:
        if buffer.last < buffer.first or not 0 <= (buffer.offset or 0) < WHOLE_LIMIT:
            what = f"is alive from {buffer.first} to {buffer.last} at {buffer.offset}"
            raise AllocationError(
                f"{source}: {name}: buffer {buffer.name!r} {what}: the dump is damaged"
            )
    addresses = [buffer.offset for buffer in buffers if buffer.offset is not None]
    placed = len(addresses) == len(buffers)
    step = math.gcd(alignment, *addresses) if placed else alignment
    columns = {
        "lower": [buffer.first for buffer in buffers],
        "upper": [buffer.last + 1 for buffer in buffers],
        "size": [buffer.size for buffer in buffers],
        "alignment": [step] * len(buffers),
        "ids": unique_names(buffer.name for buffer in buffers),
    }
    try:
        problem = problem_of(
            columns,
            aliases=_shared_groups(buffers) if shared else (),
            in_place=in_place,
        )
    except AllocationError as error:
        raise AllocationError(f"{source}: {name}: {error}") from None
    if not placed:
        return DumpedArena(name, problem, None, stated, stated)
    offsets = np.array(addresses, dtype=np.int64)
    taken = int((offsets + problem.size)[problem.size > 0].max(initial=0))
    return DumpedArena(name, problem, offsets, taken, stated)


def _shared_groups(buffers: Sequence[DumpedBuffer]) -> tuple[tuple[int, ...], ...]:
    """Return groups of buffers at one address, each alive at the same time as one before it.

    A carried buffer and all buffers of its size at its address are one group, even across instants
    at which none is alive, because a dump does not name its source.
    """
    at: dict[int | None, list[int]] = defaultdict(list)
    for number, buffer in enumerate(buffers):
        if buffer.size:
            at[buffer.offset].append(number)
    groups: list[list[int]] = []
    for members in at.values():
        carried = {buffers[number].size for number in members if buffers[number].carried}
        group, end = list[int](), -1
        of_size: dict[int, list[int]] = {}
        for number in sorted(members, key=lambda number: buffers[number].first):
            _, first, last, size, *_ = buffers[number]
            if first > end:
                group = []
                groups.append(group)
            end = max(end, last)
            group.append(number)
            other = of_size.setdefault(size, group) if size in carried else group
            if other is not group:
                other += group
                of_size |= {its: other for its, there in of_size.items() if there is group}
                group.clear()
                group = other
    return tuple(tuple(sorted(group)) for group in groups if len(group) > 1)
