"""Conflicts without a common clock as lifetimes on one: an instant for each of some cliques that
together hold every conflict.

Two buffers that conflict are then alive together at some instant, and others never are. So whatever
works on lifetimes works on a partial order, and the load at an instant is the weight of a clique.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from loadmaster.allocation.problem import NO_GAPS, Gaps, Problem
from loadmaster.core.arrays import Ints

_MOST = 200_000
"""Lifetimes beyond which conflicts stay pairs."""
_TABLE = 20_000
"""Buffers beyond which no table of all pairs is made."""


def on_one_clock(problem: Problem) -> Problem | None:
    """The same problem without conflict pairs; None if that takes too many lifetimes.

    Gaps mean nothing without a clock: a buffer counts as whole. O(n^2) memory.
    """
    if len(problem) > _TABLE:
        return None
    cliques: list[list[int]] = []
    lifetimes = 0
    for clique in _cover(problem):
        cliques.append(clique)
        lifetimes += len(clique)
        if lifetimes > _MOST + len(problem):
            return None
    middle = problem.lower.astype(np.float64) + problem.upper
    cliques.sort(key=lambda members: (float(middle[members].mean()), members))
    alive: list[list[int]] = [[] for _ in range(len(problem))]
    for instant, members in enumerate(cliques):
        for buffer in members:
            alive[buffer].append(instant)
    lower, upper = (
        np.array([mine[at] if mine else 0 for mine in alive], dtype=np.int64) for at in (0, -1)
    )
    upper += np.array([bool(mine) for mine in alive], dtype=np.int64)
    return replace(problem, lower=lower, upper=upper, gaps=_gaps(alive), conflicts=None)


def _gaps(alive: list[list[int]]) -> Gaps:
    rows = [
        (owner, one + 1, other)
        for owner, mine in enumerate(alive)
        for one, other in itertools.pairwise(mine)
        if one + 1 < other
    ]
    if not rows:
        return NO_GAPS
    owner, lower, upper = np.array(rows, dtype=np.int64).T
    return Gaps(owner, lower, upper, np.zeros_like(owner), np.zeros_like(owner))


def _cover(problem: Problem) -> Iterator[list[int]]:
    """Maximal cliques until every conflict is in one: each grown from a conflict not yet covered,
    the largest buffers first.

    Sets are whole numbers with a bit for each buffer, the largest buffer's lowest.
    """
    assert problem.conflicts is not None
    order = np.argsort(-problem.size, kind="stable")
    solid = problem.solid
    near = neighbours_in(problem, order)
    open_ = list(near)
    for start in range(len(problem)):
        if not near[start]:
            if solid[order[start]]:
                yield [int(order[start])]
            continue
        while open_[start]:
            members, common = [start], near[start]
            while common:
                fresh = common & open_[members[-1]] or common
                last = (fresh & -fresh).bit_length() - 1
                members.append(last)
                common &= near[last]
            everyone = sum(1 << member for member in members)
            for member in members:
                open_[member] &= ~everyone
            yield [int(order[member]) for member in members]


def neighbours_in(problem: Problem, order: Ints) -> list[int]:
    """Whom each buffer must be apart from: whole numbers with a bit for each, ``order`` giving
    both. O(n^2) bits."""
    rank = np.empty(len(problem), dtype=np.int64)
    rank[order] = np.arange(len(problem))
    first, near = problem.neighbours
    solid = problem.solid
    found = []
    for buffer in order.tolist():
        mine = near[first[buffer] : first[buffer + 1]]
        row = np.zeros(len(problem), dtype=bool)
        row[rank[mine[solid[mine]]]] = solid[buffer]
        found.append(int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little"))
    return found
