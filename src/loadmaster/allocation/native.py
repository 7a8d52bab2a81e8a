"""Problems as the native core takes them, and its answers as strategies want them."""

from __future__ import annotations

import math

import numpy as np

from loadmaster import _native
from loadmaster.allocation.problem import Ints, Problem
from loadmaster.allocation.search_state import Search

HONOURS = frozenset({"alignment", "pins", "gaps", "windows"})
"""What the native core can do beyond lifetimes and sizes."""

_NO_HINT = np.empty(0, dtype=np.int64)
_ALL_RULES = -1
Columns = tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints]


def columns(problem: Problem) -> Columns:
    """Sizes, alignments, pins, and the sections of every buffer, one buffer after the other."""
    first, begin, end, low, high = problem.sections
    size, alignment, pin = (np.ascontiguousarray(column) for column in (problem.size, problem.alignment, problem.pin))
    return size, alignment, pin, first, begin, end, low, high


def greedy(search: Search) -> None:
    """Offer the best of the native family of first-fit orders.

    Raises
    ------
    KeyboardInterrupt
        If one came; what was found is kept.
    """
    hint = search.problem.hint if (search.problem.hint >= 0).any() else _NO_HINT
    answer = _native.allocate_greedy(*columns(search.problem), hint, _seconds(search))
    search.offer(answer[1])
    search.expired()
    if answer[5]:
        raise KeyboardInterrupt


def in_order(problem: Problem, order: Ints, best_fit: bool = False) -> Ints:
    """Offsets when buffers are placed one after another, each at its lowest gap or its tightest."""
    return _native.place_in_order(*columns(problem), np.ascontiguousarray(order, dtype=np.int64), best_fit)[0]


def apart(problem: Problem, order: Ints, best_fit: bool = False) -> Ints:
    """`in_order` for buffers that conflict by pairs."""
    size, alignment, pin = (np.ascontiguousarray(column) for column in (problem.size, problem.alignment, problem.pin))
    return _native.place_apart(size, alignment, pin, *problem.neighbours, np.ascontiguousarray(order, dtype=np.int64), best_fit)[0]


def exact(search: Search, nodes: int) -> None:
    """Search until a packing is good enough, nothing is left to try, or the nodes are spent.

    Raises
    ------
    KeyboardInterrupt
        If one came; what was found is kept.
    """
    problem, given = search.problem, columns(search.problem)
    start = search.offsets if search.offsets is not None else problem.hint if (problem.hint >= 0).any() else _NO_HINT
    limits = (nodes, _seconds(search), search.seed, _ALL_RULES, search.threads)
    if search.capacity is None:
        status, offsets, _, lower, spent, interrupted = _native.minimise_exact(*given, start, *limits)
    else:
        status, offsets, _, lower, spent, interrupted = _native.fit_exact(*given, start, search.capacity, *limits)
        lower = search.capacity + 1 if status == "infeasible" else lower
    search.count("nodes", spent)
    if status in ("optimal", "feasible"):
        search.offer(offsets)
    if orderly(problem):
        search.floor = max(search.floor, lower)
    search.expired()
    if interrupted:
        raise KeyboardInterrupt


def fits(problem: Problem, capacity: int, nodes: int) -> bool | None:
    """Whether a packing within a capacity exists; None if the nodes did not suffice to tell."""
    if problem.features - HONOURS or not orderly(problem):
        return None
    status = _native.fit_exact(*columns(problem), _NO_HINT, capacity, nodes, math.inf, 0, _ALL_RULES, 1)[0]
    return {"feasible": True, "optimal": True, "infeasible": False}.get(status)


def lowest_peak(problem: Problem, nodes: int) -> int | None:
    """Smallest peak, if it can be proven with so many nodes."""
    if problem.features - HONOURS:
        return None
    status, _, peak, *_ = _native.minimise_exact(*columns(problem), _NO_HINT, nodes, math.inf, 0, _ALL_RULES, 1)
    return peak if status == "optimal" else None


def orderly(problem: Problem) -> bool:
    """Whether of two buffers that are alive together one must lie above the other throughout.

    The search decides who is above once for each pair. Where windows leave a buffer's low bytes free, two buffers could lie above one
    another in turn, and an exhausted search has not seen that.
    """
    return bool((problem.parts.low == 0).all())


def _seconds(search: Search) -> float:
    remaining = search.remaining()
    return math.inf if remaining is None else remaining
