"""Whether addresses hold: a naive sweep over time that shares nothing with the engines, not even how they see gaps.

O(n log n) comparisons for buffers with lifetimes and gaps; where aliases or in-place pairs are in play, every pair that lives at one
instant is compared, and all conflict pairs are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.violation import Violation, first_violations

Piece = tuple[int, int, int, int, int]
"""Owner, first instant, instant after the last, first byte, byte after the last: absolute addresses."""


_REBUILD_FROM = 64
"""If so many buffers end at one instant, rebuild the live list instead of deleting one by one."""


def verify_buffers(problem: Problem, offsets: Ints, capacity: int | None = None) -> tuple[Violation, ...]:
    """Check that offsets solve a packing problem: what is wrong with them, at most 20 violations; empty if they do."""
    return first_violations(broken_rules(problem, offsets, capacity))


def broken_rules(problem: Problem, offsets: Ints, capacity: int | None = None) -> Iterator[tuple[str, str]]:
    """Rule and message for everything that is wrong with a packing; a buffer at a negative offset counts as not placed."""
    if len(offsets) != len(problem):
        yield "complete", f"{len(offsets)} offsets for {len(problem)} buffers"
        return
    pieces = list(_pieces(problem, offsets.tolist()))
    yield from _each_buffer(problem, offsets)
    yield from _fitting(problem, offsets, {piece[0] for piece in pieces}, capacity)
    yield from _shared(problem, offsets)
    yield from _reserved(problem, pieces)
    loose = bool(problem.aliases) or len(problem.in_place) > 0
    overlaps = _listed(problem, offsets) if problem.conflicts is not None else _pairs(problem, offsets, pieces) if loose else _sweep(pieces)
    for one, other, instant in overlaps:
        yield "overlap", f"buffers {problem.name(one)!r} and {problem.name(other)!r} share bytes at instant {instant}"


def _each_buffer(problem: Problem, offsets: Ints) -> Iterator[tuple[str, str]]:
    columns = (problem.alignment, problem.pin, offsets)
    for i, (alignment, pin, at) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if at < 0:
            yield "complete", f"buffer {problem.name(i)!r} has no offset"
        elif at % alignment:
            yield "alignment", f"buffer {problem.name(i)!r} is at {at}, not a multiple of {alignment}"
        if pin >= 0 and pin != at:
            yield "pin", f"buffer {problem.name(i)!r} is at {at}, not where it is pinned ({pin})"


def _fitting(problem: Problem, offsets: Ints, occupying: set[int], capacity: int | None) -> Iterator[tuple[str, str]]:
    """Whoever occupies anything ends within the capacity, with all bytes."""
    if capacity is None:
        return
    for i in sorted(occupying):
        if (end := int(offsets[i]) + int(problem.size[i])) > capacity:
            yield "capacity", f"buffer {problem.name(i)!r} ends at {end}, past the capacity of {capacity}"


def _shared(problem: Problem, offsets: Ints) -> Iterator[tuple[str, str]]:
    for group in problem.aliases:
        if len({int(offsets[i]) - shift for i, shift in group}) > 1:
            wanted = ", ".join(f"{problem.name(i)!r}" + (f" {shift} bytes above it" if shift else "") for i, shift in group)
            yield "alias", f"buffers {wanted} must share their offset"


def _reserved(problem: Problem, pieces: list[Piece]) -> Iterator[tuple[str, str]]:
    for low, high in problem.reserved:
        for owner, _, _, first, last in pieces:
            if low < high and first < high and low < last:
                yield "reserved", f"buffer {problem.name(owner)!r} at {first}-{last} touches the reserved range {low}-{high}"


def _pieces(problem: Problem, offsets: list[int]) -> Iterator[Piece]:
    """Cut every lifetime at its gaps, which mean nothing without a clock."""
    gaps: dict[int, list[tuple[int, int, int, int]]] = {}
    for owner, *gap in zip(*(column.tolist() for column in problem.gaps), strict=True) if problem.conflicts is None else ():
        gaps.setdefault(owner, []).append((gap[0], gap[1], gap[2], gap[3]))
    columns = (problem.lower.tolist(), problem.upper.tolist(), problem.size.tolist(), offsets)
    for owner, (lower, upper, size, offset) in enumerate(zip(*columns, strict=True)):
        if size <= 0 or upper <= lower or offset < 0:
            continue
        if owner not in gaps:
            yield owner, lower, upper, offset, offset + size
            continue
        cuts = sorted({lower, upper, *(instant for gap in gaps[owner] for instant in gap[:2])})
        for begin, end in pairwise(cuts):
            first, last = next(((low, high) for a, b, low, high in gaps[owner] if a <= begin and end <= b), (0, size))
            if first < last:
                yield owner, begin, end, offset + first, offset + last


def _sweep(pieces: list[Piece]) -> Iterator[tuple[int, int, int]]:
    """Overlapping pairs, at most one for each piece: live address ranges are kept sorted, so neighbours are enough."""
    births: dict[int, list[int]] = {}
    deaths: dict[int, list[int]] = {}
    for number, piece in enumerate(pieces):
        births.setdefault(piece[1], []).append(number)
        deaths.setdefault(piece[2], []).append(number)
    live: list[tuple[int, int]] = []
    for instant in sorted(births.keys() | deaths.keys()):
        _remove(live, [(pieces[number][3], number) for number in deaths.get(instant, ())])
        for number in sorted(births.get(instant, ()), key=lambda number: pieces[number][3]):
            owner, _, _, first, last = pieces[number]
            at = bisect_left(live, (first, number))
            below = at > 0 and pieces[live[at - 1][1]][4] > first
            if below or (at < len(live) and live[at][0] < last):
                yield pieces[live[at - 1 if below else at][1]][0], owner, instant
            else:
                live.insert(at, (first, number))


def _remove(live: list[tuple[int, int]], dead: list[tuple[int, int]]) -> None:
    """Take out ranges, of which those that overlapped were never in."""
    if len(dead) > _REBUILD_FROM:
        gone = set(dead)
        live[:] = [item for item in live if item not in gone]
        return
    for item in dead:
        at = bisect_left(live, item)
        if at < len(live) and live[at] == item:
            del live[at]


def _listed(problem: Problem, offsets: Ints) -> Iterator[tuple[int, int, int]]:
    """Conflict pairs that share bytes; O(pairs)."""
    assert problem.conflicts is not None
    one, other = problem.conflicts.T
    solid = (problem.size > 0) & (problem.upper > problem.lower) & (offsets >= 0)
    top = offsets + problem.size
    clash = solid[one] & solid[other] & (one != other) & (offsets[one] < top[other]) & (offsets[other] < top[one])
    together = _together(problem, offsets)
    for a, b in problem.conflicts[clash].tolist():
        if not together(a, b):
            yield a, b, int(max(problem.lower[a], problem.lower[b]))


def _pairs(problem: Problem, offsets: Ints, pieces: list[Piece]) -> Iterator[tuple[int, int, int]]:
    """Overlapping pairs that may not: every piece is compared with those that are born while it lives."""
    together = _together(problem, offsets)
    owner, begin, end, first, last = np.array(sorted(pieces, key=lambda piece: piece[1]), dtype=np.int64).reshape(-1, 5).T
    for row, stop in enumerate(np.searchsorted(begin, end).tolist()):
        later = slice(row + 1, stop)
        meets = (first[later] < last[row]) & (first[row] < last[later]) & (owner[later] != owner[row])
        for other in (np.flatnonzero(meets) + row + 1).tolist():
            one, two = sorted((int(owner[row]), int(owner[other])))
            if not together(one, two):
                yield one, two, int(begin[other])


def _together(problem: Problem, offsets: Ints) -> Callable[[int, int], bool]:
    """Tells whether two buffers may share bytes: they are aliases, or lie to each other as their in-place pair says."""
    group_of = {member: number for number, group in enumerate(problem.aliases) for member, _ in group}
    in_place = {(one, other, shift) for one, other, shift in problem.in_place.tolist()}

    def together(one: int, other: int) -> bool:
        up = int(offsets[other]) - int(offsets[one])
        return group_of.get(one, -1) == group_of.get(other, -2) or (one, other, up) in in_place or (other, one, -up) in in_place

    return together
