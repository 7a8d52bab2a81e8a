"""Why buffers do not fit: a small set of buffers that cannot fit together, the bytes that it needs,
and the demands without which it would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.answer import FRAGMENTATION, LOAD, UNDECIDED, Infeasibility, Load
from loadmaster.allocation.bounds import load_bound, packing_bound
from loadmaster.allocation.problem import FREE, Problem
from loadmaster.allocation.reduction.reduce import Reduced, reduce
from loadmaster.allocation.strategies.in_place import cases
from loadmaster.core.arrays import Ints
from loadmaster.core.errors import AllocationError

_NODES = 20_000
"""Nodes of exact search for each test of whether some buffers fit."""
_TESTS = 2_000
"""Tests at most."""
_CASES = 8
"""Ways for in-place pairs to share that a test tries."""


def explain(asked: Problem, reduced: Reduced, capacity: int) -> Infeasibility:
    """Explain why ``asked``, which is proven not to fit, does not; ``reduced`` is what was solved.

    Where a bound exceeds the capacity, the fewest of the largest buffers behind it are named; else
    a deletion filter leaves out buffers as long as the rest is proven not to fit. O(n log^2 n), or
    at most ``_TESTS`` searches of ``_NODES`` nodes.
    """
    problem, own = reduced.problem, reduced.own
    bound = packing_bound(problem)
    if bound.bytes > capacity:
        keep = _fewest(problem, own, bound, capacity)
        irreducible = _is_irreducible(problem, keep, capacity)
    else:
        keep, irreducible = _irreducible(problem, capacity)
    core = problem.only(keep)
    required = packing_bound(core).bytes
    if required <= capacity:
        required = max((irreducible and native.lowest_peak(core, _NODES)) or 0, capacity + 1)
    return Infeasibility(
        required,
        capacity,
        required - capacity,
        _instant(core),
        _kind(asked, reduced, keep, capacity),
        tuple(core.name(i) for i in range(len(core))),
        irreducible,
    )


def _fewest(problem: Problem, own: int, bound: Load, capacity: int) -> Ints:
    """The largest of the buffers behind a bound, as many as exceed the capacity; reserved ranges
    only if it takes them."""
    named = set(bound.buffers)
    members = np.array([i for i in range(len(problem)) if problem.name(i) in named], dtype=np.int64)

    def exceeds(some: Ints) -> bool:
        if bound.instant is None:
            return int(problem.size[some].sum()) > capacity
        return load_bound(problem.only(np.sort(some))).bytes > capacity

    order = members[np.lexsort((members, -problem.size[members]))]
    mine = order[order < own]
    order = mine if exceeds(mine) else np.concatenate([order[order >= own], mine])
    few, enough = 0, len(order)
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if exceeds(order[:middle]) else (middle, enough)
    return np.sort(order[:enough])


def _is_irreducible(problem: Problem, keep: Ints, capacity: int) -> bool:
    """Whether what remains fits, whichever buffer is left out."""
    size = problem.size[keep]
    plain = not problem.features - {"conflict pairs", "gaps"}
    if plain and int(size.sum()) - int(size.min()) <= capacity:
        return True
    rests = (np.delete(keep, at) for at in range(len(keep)))
    return len(keep) <= _TESTS and all(
        not len(rest) or _fits(problem.only(rest), capacity) is True for rest in rests
    )


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


def _instant(core: Problem) -> int | None:
    """The first instant at which all are present; without a common clock there is none."""
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
    verdicts = [native.fits(case.problem, capacity, _NODES) for _, case in reduced]
    return True if True in verdicts else None if None in verdicts or not complete else False


def _kind(asked: Problem, reduced: Reduced, keep: Ints, capacity: int) -> str:
    """The fewest demands without which these buffers would fit.

    Demands are given up in the problem as it was asked: merged alias groups have alignments and
    pins in common, of which nothing would be left to give up.
    """
    own = keep[keep < reduced.own]
    merged = reduced.kept[own]
    sub = asked.only(np.flatnonzero(np.isin(reduced.merged.place, merged)))
    if len(own) == len(keep):
        sub = replace(sub, reserved=())
    give_up: dict[str, Callable[[Problem], Problem]] = {
        "reserved ranges": lambda core: replace(core, reserved=()),
        "pins": lambda core: replace(core, pin=np.full_like(core.pin, FREE)),
        "alignment": lambda core: replace(core, alignment=np.ones_like(core.alignment)),
    }
    made = {
        "reserved ranges": bool(sub.reserved),
        "pins": bool((sub.pin != FREE).any()),
        "alignment": bool((sub.alignment > 1).any()),
    }
    demands = [name for name in give_up if made[name]]

    def without(names: Iterable[str]) -> Problem | None:
        core = sub
        for name in names:
            core = give_up[name](core)
        try:
            return reduce(core, capacity).problem
        except AllocationError:
            # Pins of aliases that overlap one another.
            return None

    plain = without(demands)
    if plain is not None and load_bound(plain).bytes > capacity:
        return LOAD
    undecided = False
    for count in range(1, len(demands) + 1):
        for some in combinations(demands, count):
            looser = without(some)
            verdict = False if looser is None else _fits(looser, capacity)
            if verdict:
                return " and ".join(some)
            undecided |= verdict is None
    return UNDECIDED if undecided else FRAGMENTATION
