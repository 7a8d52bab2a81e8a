"""Why buffers do not fit: how many bytes too many, where, of which kind, and a small set of buffers
that cannot fit together."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.answer import FRAGMENTATION, LOAD, Infeasibility, Load
from loadmaster.allocation.bounds import load_bound, packing_bound
from loadmaster.allocation.problem import FREE, Problem
from loadmaster.allocation.reduction.reduce import Reduced
from loadmaster.allocation.strategies.in_place import cases
from loadmaster.core.arrays import Ints

_NODES = 20_000
"""Budget of each test."""
_TESTS = 2_000
"""Tests at most."""
_CASES = 8
"""Cases of a test, by which in-place pairs share."""


def explain(reduced: Reduced, capacity: int) -> Infeasibility:
    """Explain a problem that has been proven not to fit; reserved ranges are buffers of it, which
    names tell."""
    problem, own = reduced.problem, reduced.own
    load = load_bound(problem)
    if load.bytes > capacity:
        return _by_load(problem, own, load, capacity)
    pairs = packing_bound(problem, load)
    if pairs.bytes > capacity:
        return _by_pairs(problem, own, pairs, capacity)
    keep, irreducible = _irreducible(problem, capacity)
    required = native.lowest_peak(problem.only(keep), _NODES) if irreducible else None
    return _of(problem, own, keep, max(required or 0, capacity + 1), capacity, irreducible)


def _of(
    problem: Problem, own: int, keep: Ints, required: int, capacity: int, irreducible: bool
) -> Infeasibility:
    core = problem.only(keep)
    kind = _kind(core, int((keep < own).sum()), capacity)
    names = tuple(core.name(i) for i in range(len(core)))
    return Infeasibility(
        required, capacity, required - capacity, _instant(core), kind, names, irreducible
    )


def _members(problem: Problem, bound: Load) -> Ints:
    """The buffers that a bound names."""
    named = set(bound.buffers)
    return np.array([i for i in range(len(problem)) if problem.name(i) in named], dtype=np.int64)


def _by_load(problem: Problem, own: int, bound: Load, capacity: int) -> Infeasibility:
    """The largest of the buffers that are alive together, as many as it takes; reserved ranges only
    if it takes them."""
    members = _members(problem, bound)
    assert bound.instant is not None
    bytes_ = _bytes_at(problem, bound.instant)
    if len(members) == 1 and int(problem.size[members[0]]) > capacity:
        # Not all of it needs to be occupied at one time.
        bytes_ = problem.size
    if int(bytes_[members].sum()) <= capacity:
        plain = not problem.features - {"alignment"}
        return _of(
            problem,
            own,
            members,
            bound.bytes,
            capacity,
            len(members) == 1 or (plain and _each_counts(problem, members, capacity)),
        )
    if len(problem.in_place):
        return _by_shared_load(
            problem, own, bound, members[np.lexsort((members, -bytes_[members]))], capacity
        )
    order = members[np.lexsort((members, -bytes_[members], members >= own))]
    alone = int(bytes_[members[members < own]].sum())
    if alone <= capacity:
        order = members[np.lexsort((members, -bytes_[members], members < own))]
    members = np.sort(order[: int(np.argmax(np.cumsum(bytes_[order]) > capacity)) + 1])
    least = int(bytes_[members].min())
    kind = (
        LOAD
        if alone > capacity
        else _kind(problem.only(members), int((members < own).sum()), capacity)
    )
    irreducible = len(members) == 1 or (
        not problem.features - {"conflict pairs"} and int(bytes_[members].sum()) - least <= capacity
    )
    instant = None if problem.conflicts is not None else bound.instant
    names = tuple(problem.name(i) for i in members.tolist())
    return Infeasibility(
        bound.bytes, capacity, bound.bytes - capacity, instant, kind, names, irreducible
    )


def _by_pairs(problem: Problem, own: int, bound: Load, capacity: int) -> Infeasibility:
    """The largest of the buffers that are alive together two by two, as many as it takes; reserved
    ranges only if it takes them."""
    members = _members(problem, bound)
    order = members[np.lexsort((members, -problem.size[members], members >= own))]
    members = np.sort(order[: int(np.argmax(np.cumsum(problem.size[order]) > capacity)) + 1])
    rest_fits = int(problem.size[members].sum()) - int(problem.size[members].min()) <= capacity
    return _of(
        problem, own, members, bound.bytes, capacity, rest_fits and not problem.features - {"gaps"}
    )


def _by_shared_load(
    problem: Problem, own: int, bound: Load, order: Ints, capacity: int
) -> Infeasibility:
    """The same where some may share an address: the shortest beginning of a list that is too much
    however they share."""

    def exceeds(members: Ints) -> bool:
        return load_bound(problem.only(np.sort(members))).bytes > capacity

    mine = order[order < own]
    alone = exceeds(mine)
    order = mine if alone else np.concatenate([order[order >= own], mine])
    few, enough = 0, len(order)
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if exceeds(order[:middle]) else (middle, enough)
    members = np.sort(order[:enough])
    kind = LOAD if alone else _kind(problem.only(members), int((members < own).sum()), capacity)
    instant = None if problem.conflicts is not None else bound.instant
    names = tuple(problem.name(i) for i in members.tolist())
    return Infeasibility(
        bound.bytes, capacity, bound.bytes - capacity, instant, kind, names, len(members) == 1
    )


def _bytes_at(problem: Problem, instant: int) -> Ints:
    """What each buffer occupies at an instant; without a clock, all of it."""
    if problem.conflicts is not None:
        return problem.size
    parts = problem.parts
    at = (parts.lower <= instant) & (instant < parts.upper)
    bytes_ = np.zeros(len(problem), dtype=np.int64)
    np.add.at(bytes_, parts.owner[at], (parts.high - parts.low)[at])
    return bytes_


def _each_counts(problem: Problem, members: Ints, capacity: int) -> bool:
    """Whether what remains fits whichever is left out."""
    return all(
        _fits(problem.only(np.delete(members, at)), capacity) is True
        for at in range(min(len(members), _TESTS))
    )


def _instant(core: Problem) -> int | None:
    """The first instant at which all are present."""
    if core.conflicts is not None:
        return None
    parts = core.parts
    for instant in np.unique(parts.lower).tolist():
        at = (parts.lower <= instant) & (instant < parts.upper)
        if len(np.unique(parts.owner[at])) == len(core):
            return int(instant)
    return None


def _fits(problem: Problem, capacity: int) -> bool | None:
    """Whether a packing within a capacity exists, if that is quickly told; with in-place pairs case
    by case."""
    if not len(problem.in_place):
        return native.fits(problem, capacity, _NODES)
    reduced, complete = cases(problem, _CASES)
    verdicts = (
        [native.fits(case.problem, capacity, _NODES) for _, case in reduced] if complete else [None]
    )
    return True if True in verdicts else None if None in verdicts else False


def _irreducible(problem: Problem, capacity: int) -> tuple[Ints, bool]:
    """Deletion filter: leave out ever smaller blocks while what remains is still proven not to
    fit."""
    keep = np.arange(len(problem))
    tests, block = 0, max(1, len(problem) // 2)
    while True:
        sure, at = True, 0
        while at < len(keep) and tests < _TESTS:
            rest = np.concatenate([keep[:at], keep[at + block :]])
            tests += 1
            verdict = _fits(problem.only(rest), capacity) if len(rest) else True
            if verdict is False:
                keep = rest
            else:
                at, sure = at + block, sure and verdict is True
        if block == 1:
            return keep, sure and tests < _TESTS
        block //= 2


def _kind(core: Problem, own: int, capacity: int) -> str:
    """What one would have to give up for these buffers to fit: as little as possible."""
    found = core.features
    demands = [
        *(["reserved ranges"] if own < len(core) else []),
        *(["pins"] if (core.pin[:own] >= 0).any() else []),
        *(["alignment"] if "alignment" in found else []),
    ]
    for some in (
        some for count in range(1, len(demands) + 1) for some in combinations(demands, count)
    ):
        if _fits(_without(core, own, some), capacity):
            return " and ".join(some)
    return FRAGMENTATION


def _without(core: Problem, own: int, demands: tuple[str, ...]) -> Problem:
    pin = core.pin.copy()
    if "pins" in demands:
        pin[:own] = FREE
    looser = replace(
        core,
        pin=pin,
        alignment=np.ones_like(core.alignment) if "alignment" in demands else core.alignment,
    )
    return looser.only(np.arange(own)) if "reserved ranges" in demands else looser
