"""One memory as another planner packed it: its buffers as a packing problem, and the addresses that
they were given."""

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
from loadmaster.core.arrays import Ints
from loadmaster.core.errors import AllocationError
from loadmaster.core.names import unique_names


class Placed(NamedTuple):
    """A buffer of a dump: alive from instant ``first`` to ``last``, both inclusive, ``size`` bytes
    at ``offset`` (None: not told).

    ``carried`` is what a loop or a conditional hands on, which lies where what it comes from does.
    """

    name: str
    first: int
    last: int
    size: int
    offset: int | None = None
    carried: bool = False


@dataclass(frozen=True)
class Arena:
    """One memory of a dump.

    Attributes
    ----------
    name
        What the dump calls it.
    problem
        The buffers, with lifetimes [lower, upper) and the alignment that the planner keeps.
    offsets
        Bytes, one per buffer, as the planner placed them; None if the dump has no addresses.
    taken
        Bytes that the planner takes: the highest address in use where there are addresses, else as
        the dump says; None if it does not.
    stated
        Bytes that the dump says are taken, or None.
    """

    name: str
    problem: Problem
    offsets: Ints | None
    taken: int | None
    stated: int | None = None


def arena_of(
    source: Path,
    name: str,
    buffers: Sequence[Placed],
    alignment: int,
    *,
    stated: int | None = None,
    shared: bool = False,
    in_place: Sequence[tuple[int, int]] = (),
) -> Arena:
    """Make an arena of the buffers that a dump lists. O(n log n).

    Parameters
    ----------
    source, name
        The file, and what the dump calls the arena.
    buffers
        In any order.
    alignment
        Bytes of which the planner makes addresses multiples; less where its own addresses show that
        it does not.
    stated
        Bytes that the dump says are taken.
    shared
        Whether buffers that are alive together at one address are one storage for the planner, and
        stay together.
    in_place
        Pairs of buffers, by position, that may share their address.

    Raises
    ------
    AllocationError
        If a lifetime ends before it begins, or a number is too large; the message begins with the
        file.
    """
    for buffer in buffers:
        if buffer.last < buffer.first or (buffer.offset or 0) < 0:
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
            aliases=_sharing(buffers) if shared else (),
            in_place=np.array(in_place).reshape(-1, 2).astype(int),
        )
    except AllocationError as error:
        raise AllocationError(f"{source}: {name}: {error}") from None
    if not placed:
        return Arena(name, problem, None, stated, stated)
    taken = max(
        (
            address + buffer.size
            for address, buffer in zip(addresses, buffers, strict=True)
            if buffer.size
        ),
        default=0,
    )
    return Arena(name, problem, np.array(addresses, dtype=np.int64), taken, stated)


def _sharing(buffers: Sequence[Placed]) -> tuple[tuple[int, ...], ...]:
    """Groups of buffers at one address, each of which is alive together with one before it.

    A carried buffer and all others of its size at its address are one group, over instants at
    which none of them is alive, too: a dump does not say which of them it comes from.
    """
    at: dict[int | None, list[int]] = defaultdict(list)
    for number, buffer in enumerate(buffers):
        if buffer.size:
            at[buffer.offset].append(number)
    groups: list[list[int]] = []
    for members in at.values():
        carried = {buffers[number].size for number in members if buffers[number].carried}
        here: list[list[int]] = []
        for group in _alive_together(buffers, members):
            sizes = carried.intersection(buffers[number].size for number in group)
            related = [
                other for other in here if sizes.intersection(buffers[n].size for n in other)
            ]
            here = [other for other in here if other not in related]
            here.append(sorted(number for part in (*related, group) for number in part))
        groups += here
    return tuple(tuple(group) for group in groups if len(group) > 1)


def _alive_together(buffers: Sequence[Placed], members: list[int]) -> list[list[int]]:
    """Groups of members, each of which is alive together with one before it."""
    groups: list[list[int]] = []
    end = -1
    for number in sorted(members, key=lambda number: buffers[number].first):
        if buffers[number].first > end:
            groups.append([])
        groups[-1].append(number)
        end = max(end, buffers[number].last)
    return groups
