"""In-place pairs: which of them share an address is tried case by case, each a problem of its own with the sharing buffers as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.answer import Load
from loadmaster.allocation.bounds import load_bound
from loadmaster.allocation.problem import FREE, Problem
from loadmaster.allocation.reduction.reduce import Reduced, reduce, sharing_pairs
from loadmaster.allocation.search_state import Search
from loadmaster.allocation.strategies import exact
from loadmaster.core.errors import AllocationError

_CASES = 256
"""Cases up to which all are tried, so that the lowest is proven to be."""
_NO_PAIRS = np.empty((0, 2), dtype=np.int64)

Groups = frozenset[frozenset[int]]


def run(search: Search, whole: Callable[[Search], None]) -> None:
    """Try the cases, the one with the least load first; ``whole`` solves the first, and exact search alone the others."""
    reduced_cases, complete = cases(search.problem, _CASES)
    ordered = sorted(reduced_cases, key=lambda case: case[0].bytes)
    floor = None
    for number, (bound, reduced) in enumerate(ordered):
        if search.done or search.expired():
            return
        lower = bound.bytes
        if not ((search.peak is not None and lower >= search.peak) or (search.capacity is not None and lower > search.capacity)):
            lower = _solve(search, reduced, bound, whole if number == 0 or not complete else _quick, len(ordered))
        floor = lower if floor is None else min(floor, lower)
    if complete and floor is not None:
        search.floor = max(search.floor, floor)


def cases(problem: Problem, most: int) -> tuple[Iterator[tuple[Load, Reduced]], bool]:
    """Problems without in-place pairs, with their bounds, and whether any packing is one of one of them; beyond ``most`` they are two."""
    partitions, complete = _partitions(problem, most)
    return _reduced(problem, partitions), complete


def _solve(search: Search, reduced: Reduced, bound: Load, strategy: Callable[[Search], None], count: int) -> int:
    """Offer what is found for one case; bytes that every packing of it needs."""
    part = Search(reduced.problem, bound, search.capacity, search.seed, search.threads, search.deadline, share=search.share * count)
    strategy(part)
    if part.offsets is not None:
        search.offer(reduced.offsets(part.offsets))
    search.interrupted |= part.interrupted
    for name, more in part.counters.items():
        search.count(name, more)
    return max(bound.bytes, part.floor)


def _quick(search: Search) -> None:
    if search.problem.features <= native.HONOURS:
        native.greedy(search)
        if not search.done and not search.expired():
            exact.run(search)


def _reduced(problem: Problem, partitions: Iterable[Groups]) -> Iterator[tuple[Load, Reduced]]:
    for groups in partitions:
        shared = tuple(tuple(sorted(group)) for group in sorted(groups, key=min) if len(group) > 1)
        try:
            reduced = reduce(replace(problem, in_place=_NO_PAIRS, aliases=shared))
        except AllocationError:
            # A group takes over a pin at which another buffer is pinned: this case has no packing.
            continue
        yield load_bound(reduced.problem), reduced


def _partitions(problem: Problem, limit: int) -> tuple[list[Groups], bool]:
    """Ways to let pairs share, and whether these are all; the first lets as many share as it can, the last none."""
    pairs = [frozenset(pair) for pair in sharing_pairs(problem, np.arange(len(problem))).tolist()]
    pairs.sort(key=lambda pair: (-min(int(problem.size[buffer]) for buffer in pair), sorted(pair)))
    allowed = frozenset(pairs)
    forced = [pair for pair in pairs if len(pins := {int(problem.pin[buffer]) for buffer in pair}) == 1 and FREE not in pins]
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


def _joined(problem: Problem, groups: Groups, pair: frozenset[int], allowed: frozenset[frozenset[int]]) -> Groups | None:
    """The groups after a pair's are joined; None if they are one already, or pins or two that must be apart forbid it."""
    one, other = (next((group for group in groups if buffer in group), frozenset((buffer,))) for buffer in pair)
    pins = {int(problem.pin[buffer]) for buffer in one | other} - {FREE}
    if one == other or len(pins) > 1 or any(pin % int(problem.alignment[buffer]) for pin in pins for buffer in one | other):
        return None
    if any(frozenset((a, b)) not in allowed and problem.meet(a, b) for a in one for b in other):
        return None
    return (groups - {one, other}) | {one | other}
