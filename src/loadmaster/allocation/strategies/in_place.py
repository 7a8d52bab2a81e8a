"""In-place pairs: which of them share an address is tried case by case, each a problem of its own
with the sharing buffers as one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.alias_groups import common_residue
from loadmaster.allocation.answer import Load
from loadmaster.allocation.bounds import load_bound
from loadmaster.allocation.problem import FREE, NO_IN_PLACE, Problem
from loadmaster.allocation.reduction.reduce import Reduced, reduce, sharing_pairs
from loadmaster.allocation.search_state import Search
from loadmaster.core.errors import AllocationError

_CASES = 256
"""Cases up to which all are tried, so that the lowest is proven to be."""

Row = tuple[int, int, int]
"""Two buffers, and how far the other lies above the one."""
Groups = frozenset[tuple[tuple[int, int], ...]]
"""Buffers that move as one, each with its shift, as alias groups do; those that move alone are left
out."""


def run(search: Search, whole: Callable[[Search], None]) -> None:
    """Try the cases, the one with the least load first; ``whole`` solves the first, and exact
    search alone the others."""
    reduced_cases, complete = cases(search.problem, _CASES)
    ordered = sorted(reduced_cases, key=lambda case: case[0].bytes)
    floor = None
    for number, (bound, reduced) in enumerate(ordered):
        if search.done or search.interrupted or search.expired():
            return
        lower = bound.bytes
        if not (
            (search.peak is not None and lower >= search.peak)
            or (search.capacity is not None and lower > search.capacity)
        ):
            lower = _solve(
                search,
                reduced,
                bound,
                whole if number == 0 or not complete else _quick,
                len(ordered),
            )
        floor = lower if floor is None else min(floor, lower)
    if complete and floor is not None:
        search.floor = max(search.floor, floor)


def cases(problem: Problem, most: int) -> tuple[Iterator[tuple[Load, Reduced]], bool]:
    """Problems without in-place pairs, with their bounds, and whether any packing is one of one of
    them; beyond ``most`` they are two."""
    partitions, complete = _partitions(problem, most)
    return _reduced(problem, partitions), complete


def _solve(
    search: Search, reduced: Reduced, bound: Load, strategy: Callable[[Search], None], count: int
) -> int:
    """Offer what is found for one case; bytes that every packing of it needs."""
    part = Search(
        reduced.problem,
        bound,
        search.capacity,
        search.seed,
        search.threads,
        search.deadline,
        effort=search.effort.divided(count),
    )
    strategy(part)
    if part.offsets is not None:
        search.offer(reduced.offsets(part.offsets))
    search.interrupted |= part.interrupted
    for name, more in part.counters.items():
        search.count(name, more)
    return max(bound.bytes, part.floor)


def _quick(search: Search) -> None:
    if search.problem.features <= native.HONOURS:
        native.run(search, "auto", in_passing=True)


def _reduced(problem: Problem, partitions: Iterable[Groups]) -> Iterator[tuple[Load, Reduced]]:
    for groups in partitions:
        try:
            reduced = reduce(replace(problem, in_place=NO_IN_PLACE, aliases=tuple(sorted(groups))))
        except AllocationError:
            # A group takes over a pin at which another buffer is pinned: this case has no packing.
            continue
        yield load_bound(reduced.problem), reduced


def _partitions(problem: Problem, limit: int) -> tuple[list[Groups], bool]:
    """Ways to let pairs share, and whether these are all; the first lets as many share as it can,
    the last none."""
    rows = sharing_pairs(
        problem, np.arange(len(problem)), np.zeros(len(problem), dtype=np.int64)
    ).tolist()
    pairs: list[Row] = [(one, other, shift) for one, other, shift in rows]
    pairs.sort(key=lambda pair: (-min(int(problem.size[buffer]) for buffer in pair[:2]), pair))
    allowed = frozenset(pairs) | {(other, one, -shift) for one, other, shift in pairs}
    pin = problem.pin.tolist()
    forced = [
        (one, other, up)
        for one, other, up in pairs
        if FREE not in (pin[one], pin[other]) and pin[one] + up == pin[other]
    ]
    start: Groups = frozenset()
    for pair in forced:
        start = _joined(problem, start, pair, allowed) or start
    most = start
    for pair in pairs:
        most = _joined(problem, most, pair, allowed) or most
    seen, found = {start}, [start]
    for groups in found:
        for pair in pairs:
            larger = _joined(problem, groups, pair, allowed)
            if larger is not None and larger not in seen:
                seen.add(larger)
                found.append(larger)
        if len(found) > limit:
            return [most, start], False
    return found, True


def _joined(problem: Problem, groups: Groups, pair: Row, allowed: Collection[Row]) -> Groups | None:
    """The groups after a pair's are joined; None if they are one already, or pins, alignments or
    two that must be apart forbid it."""
    mine, theirs = (
        next(
            (group for group in groups if any(member == buffer for member, _ in group)),
            ((buffer, 0),),
        )
        for buffer in pair[:2]
    )
    if mine == theirs:
        return None
    up = pair[2] + dict(mine)[pair[0]] - dict(theirs)[pair[1]]
    moved = tuple((buffer, shift + up) for buffer, shift in theirs)
    if any(
        problem.meet(a, b, y - x) and (a, b, y - x) not in allowed
        for a, x in mine
        for b, y in moved
    ):
        return None
    lowest = min(shift for _, shift in mine + moved)
    whole = tuple(sorted((buffer, shift - lowest) for buffer, shift in mine + moved))
    if common_residue([(int(problem.alignment[buffer]), shift) for buffer, shift in whole]) is None:
        return None
    bases = {
        int(problem.pin[buffer]) - shift for buffer, shift in whole if problem.pin[buffer] != FREE
    }
    if len(bases) > 1 or any(
        base < 0 or (base + shift) % int(problem.alignment[b])
        for base in bases
        for b, shift in whole
    ):
        return None
    return (groups - {mine, theirs}) | {whole}
