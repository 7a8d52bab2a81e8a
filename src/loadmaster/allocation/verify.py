"""Verifies packings by a naive sweep over time that shares no code with the engines.

O(n log n) comparisons for buffers with lifetimes and gaps. With aliases or in-place pairs, all
pairs of buffers alive at one instant are compared; with conflicts, all conflict pairs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

import numpy as np

from loadmaster.allocation.problem import Problem
from loadmaster.core.arguments import validate_arguments
from loadmaster.core.arrays import WHOLE_LIMIT, Ints, Mask
from loadmaster.core.errors import AllocationError, Violation, first_violations
from loadmaster.core.units import parse_bytes


class OccupiedAreas(NamedTuple):
    """Rectangles in time and space: ``owner`` occupies [first, last) over [begin, end)."""

    owner: Ints
    begin: Ints
    end: Ints
    first: Ints
    last: Ints


BrokenRules: TypeAlias = Iterator[tuple[str, str]]
"""Rule and message of each violation."""
Overlaps: TypeAlias = Iterator[tuple[int, int, int]]
"""Pairs of buffers that share bytes but must not, each with an instant."""
_AT_ONCE = 65_536
"""So many rows of arrays are lists at a time, which take five times the memory."""

_REBUILD_FROM = 64
"""If so many buffers end at one instant, rebuild the live list instead of deleting one by one."""


@validate_arguments(AllocationError)
def verify_buffers(
    problem: Problem, offsets: Sequence[int] | Ints, capacity: int | str | None = None
) -> tuple[Violation, ...]:
    """Verify the offsets of a packing problem; return at most 20 violations, none if the packing is
    valid.

    Raises
    ------
    AllocationError
        If ``offsets`` or the capacity, in bytes or such as ``"64 KiB"``, are not whole numbers.
    """
    if isinstance(capacity, str):
        capacity = parse_bytes(capacity)
    return first_violations(broken_rules(problem, whole_offsets(offsets), capacity))


def whole_offsets(offsets: Sequence[int] | Ints) -> Ints:
    """Return offsets as an array; raise AllocationError if they are no whole numbers."""
    at = np.asarray(offsets)
    if at.ndim != 1 or (at.size and at.dtype.kind not in "iu"):
        raise AllocationError("offsets: give a whole number for every buffer, -1 for none")
    return at


def broken_rules(problem: Problem, offsets: Ints, capacity: int | None = None) -> BrokenRules:
    """Yield (rule, message) for every violation of a packing; a negative offset means that the
    buffer was not placed."""
    if len(offsets) != len(problem):
        yield "complete", f"{len(offsets)} offsets for {len(problem)} buffers"
        return
    if (offsets >= WHOLE_LIMIT).any():  # Their sums would overflow.
        far = f"buffer {problem.name(int(offsets.argmax()))!r} is at {offsets.max()}, beyond 2^62"
        yield "capacity", far
        return
    pieces = _pieces(problem, offsets)
    yield from _offset_violations(problem, offsets)
    if capacity is not None:
        occupying, end = np.unique(pieces.owner), offsets + problem.size
        for i in occupying[end[occupying] > capacity].tolist():
            far = f"ends at {end[i]}, past the capacity of {capacity}"
            yield "capacity", f"buffer {problem.name(i)!r} {far}"
    yield from _alias_violations(problem, offsets)
    yield from _reserved_violations(problem, pieces)
    for one, other, instant in overlaps(problem, offsets, pieces):
        both = f"{problem.name(one)!r} and {problem.name(other)!r}"
        yield "overlap", f"buffers {both} share bytes at instant {instant}"


def overlaps(problem: Problem, offsets: Ints, pieces: OccupiedAreas | None = None) -> Overlaps:
    """Yield pairs of buffers that share bytes but must not, with an instant; buffers at a negative
    offset are skipped. ``pieces`` are what `_pieces` returns, if known."""
    if problem.conflicts is not None:
        return _unless_shared(problem, offsets, _listed_overlaps(problem, offsets))
    if pieces is None:
        pieces = _pieces(problem, offsets)
    if problem.aliases or len(problem.in_place):
        return _unless_shared(problem, offsets, _pairs(pieces))
    return _sweep(pieces)


def _offset_violations(problem: Problem, offsets: Ints) -> BrokenRules:
    """Yield buffers without an offset, off their alignment or away from their pin."""
    wrong = (
        (offsets < 0)
        | (offsets % problem.alignment != 0)
        | ((problem.pin >= 0) & (problem.pin != offsets))
    )
    for i in np.flatnonzero(wrong).tolist():
        alignment, pin, at = (
            int(column[i]) for column in (problem.alignment, problem.pin, offsets)
        )
        if at < 0:
            yield "complete", f"buffer {problem.name(i)!r} has no offset"
        elif at % alignment:
            yield (
                "alignment",
                f"buffer {problem.name(i)!r} is at {at}, not a multiple of {alignment}",
            )
        if pin >= 0 and pin != at:
            yield "pin", f"buffer {problem.name(i)!r} is at {at}, not where it is pinned ({pin})"


def _alias_violations(problem: Problem, offsets: Ints) -> BrokenRules:
    """Yield alias groups whose buffers do not share their offset."""
    for group in problem.aliases:
        if len({int(offsets[i]) - shift for i, shift in group}) > 1:
            wanted = ", ".join(
                f"{problem.name(i)!r}" + (f" {shift} bytes above it" if shift else "")
                for i, shift in group
            )
            yield "alias", f"buffers {wanted} must share their offset"


def _reserved_violations(problem: Problem, pieces: OccupiedAreas) -> BrokenRules:
    """Yield buffers in reserved ranges."""
    for low, high in problem.reserved:
        for row in np.flatnonzero((low < high) & (pieces.first < high) & (low < pieces.last)):
            name, first, last = problem.name(pieces.owner[row]), pieces.first[row], pieces.last[row]
            yield (
                "reserved",
                f"buffer {name!r} at {first}-{last} touches the reserved range {low}-{high}",
            )


def _placed(problem: Problem, offsets: Ints) -> Mask:
    """Mask of the placed buffers that take bytes; without a clock, lifetimes may be empty."""
    lasts = problem.upper > problem.lower
    return (problem.size > 0) & (offsets >= 0) & (lasts | (problem.conflicts is not None))


def _pieces(problem: Problem, offsets: Ints) -> OccupiedAreas:
    """Split every lifetime at its gaps; conflicts without a clock have none."""
    gaps: dict[int, list[list[int]]] = {}
    if problem.conflicts is None:
        for owner, *gap in np.stack(problem.gaps, axis=1).tolist():
            gaps.setdefault(owner, []).append(gap)
    there = _placed(problem, offsets)
    rows = [
        (owner, *piece)
        for owner in gaps
        if there[owner]
        for piece in _between_gaps(problem, owner, int(offsets[owner]), gaps[owner])
    ]
    there[list(gaps)] = False
    whole = np.flatnonzero(there)
    at = offsets[whole]
    plain = OccupiedAreas(
        whole, problem.lower[whole], problem.upper[whole], at, at + problem.size[whole]
    )
    return OccupiedAreas(
        *(
            np.concatenate(pair)
            for pair in zip(plain, np.array(rows, dtype=np.int64).reshape(-1, 5).T, strict=True)
        )
    )


def _between_gaps(
    problem: Problem, owner: int, offset: int, gaps: list[list[int]]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the rectangles that a buffer with gaps occupies; O(gaps log gaps)."""
    now, upper, size = (
        int(column[owner]) for column in (problem.lower, problem.upper, problem.size)
    )
    for begin, end, low, high in (*sorted(gaps), (upper, upper, 0, 0)):
        for start, stop, first, last in ((now, begin, 0, size), (begin, end, low, high)):
            if start < stop and first < last:
                yield start, stop, offset + first, offset + last
        now = end


def _sweep(pieces: OccupiedAreas) -> Overlaps:
    """Yield overlapping pairs, at most one per piece: live address ranges are kept sorted, so only
    neighbours are compared."""
    order = np.lexsort((pieces.first, pieces.begin))
    live: list[tuple[int, int, int]] = []
    deaths: list[tuple[int, tuple[int, int, int]]] = []
    for chunk in np.split(order, range(_AT_ONCE, len(order), _AT_ONCE)):
        for owner, begin, end, first, last in zip(
            *(column[chunk].tolist() for column in pieces), strict=True
        ):
            dead = []
            while deaths and deaths[0][0] <= begin:
                dead.append(heappop(deaths)[1])
            _remove(live, dead)
            mine = (first, last, owner)
            at = bisect_left(live, mine)
            if at > 0 and live[at - 1][1] > first:
                yield live[at - 1][2], owner, begin
            elif at < len(live) and live[at][0] < last:
                yield live[at][2], owner, begin
            else:
                live.insert(at, mine)
                heappush(deaths, (end, mine))


def _remove(live: list[tuple[int, int, int]], dead: list[tuple[int, int, int]]) -> None:
    """Remove dead ranges from the live ones."""
    if len(dead) > _REBUILD_FROM:
        gone = set(dead)
        live[:] = [item for item in live if item not in gone]
        return
    for item in dead:
        del live[bisect_left(live, item)]


def _listed_overlaps(problem: Problem, offsets: Ints) -> Overlaps:
    """Yield conflict pairs that share bytes; O(pairs)."""
    assert problem.conflicts is not None
    one, other = problem.conflicts.T
    placed = _placed(problem, offsets)
    top = offsets + problem.size
    clash = (
        placed[one]
        & placed[other]
        & (one != other)
        & (offsets[one] < top[other])
        & (offsets[other] < top[one])
    )
    for a, b in problem.conflicts[clash].tolist():
        yield a, b, int(problem.lower[[a, b]].max())


def _pairs(pieces: OccupiedAreas) -> Overlaps:
    """Yield all overlaps: every piece is compared with all pieces that begin during its life."""
    order = np.argsort(pieces.begin, kind="stable")
    owner, begin, end, first, last = (column[order] for column in pieces)
    for row, stop in enumerate(np.searchsorted(begin, end).tolist()):
        later = slice(row + 1, stop)
        meets = (
            (first[later] < last[row]) & (first[row] < last[later]) & (owner[later] != owner[row])
        )
        for other in (np.flatnonzero(meets) + row + 1).tolist():
            one, two = sorted(owner[[row, other]].tolist())
            yield one, two, int(begin[other])


def _unless_shared(problem: Problem, offsets: Ints, pairs: Overlaps) -> Overlaps:
    """Yield the pairs but those of buffers that may share bytes: aliases, and in-place pairs at the
    offsets that they require."""
    group_of = {
        member: number for number, group in enumerate(problem.aliases) for member, _ in group
    }
    in_place = set(map(tuple, problem.in_place.tolist()))
    for one, other, instant in pairs:
        up = int(offsets[other]) - int(offsets[one])
        if (
            group_of.get(one, -1) != group_of.get(other, -2)
            and (one, other, up) not in in_place
            and (other, one, -up) not in in_place
        ):
            yield one, other, instant
