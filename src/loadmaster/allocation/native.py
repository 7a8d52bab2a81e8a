"""Problems as the native core takes them, and its answers as strategies want them."""

from __future__ import annotations

import math

import numpy as np

from loadmaster import _native
from loadmaster.allocation.problem import Ints, Problem
from loadmaster.allocation.search_state import Search

HONOURS = frozenset({"alignment", "pins", "gaps", "windows"})
"""What the native core can do beyond lifetimes and sizes."""


def packing_problem(problem: Problem) -> _native.PackingProblem:
    """The problem as the native core takes it; O(n)."""
    return _native.PackingProblem(*_columns(problem), *problem.sections)


def greedy(search: Search) -> None:
    """Offer the best of the native family of first-fit orders.

    Raises
    ------
    KeyboardInterrupt
        If one came; what was found is kept.
    """
    found = packing_problem(search.problem).greedy(_hint(search.problem), seconds=_seconds(search))
    search.offer(found.offsets)
    search.expired()
    if found.interrupted:
        raise KeyboardInterrupt


def in_order(problem: Problem, order: Ints, best_fit: bool = False) -> Ints:
    """Offsets when buffers are placed one after another, each at its lowest gap or its tightest."""
    return packing_problem(problem).place_in_order(np.ascontiguousarray(order, dtype=np.int64), best_fit).offsets


def apart(problem: Problem, order: Ints, best_fit: bool = False) -> Ints:
    """`in_order` for buffers that conflict by pairs."""
    return _native.place_apart(*_columns(problem), *problem.neighbours, np.ascontiguousarray(order, dtype=np.int64), best_fit).offsets


def exact(search: Search, nodes: int) -> None:
    """Search until a packing is good enough, nothing is left to try, or the nodes are spent.

    Raises
    ------
    KeyboardInterrupt
        If one came; what was found is kept.
    """
    problem, seconds = packing_problem(search.problem), _seconds(search)
    start = search.offsets if search.offsets is not None else _hint(search.problem)
    if search.capacity is None:
        found = problem.minimise(start, nodes=nodes, seconds=seconds, seed=search.seed, threads=search.threads)
    else:
        found = problem.fit(search.capacity, start, nodes=nodes, seconds=seconds, seed=search.seed, threads=search.threads)
    search.count("nodes", found.nodes)
    if found.status in ("optimal", "feasible"):
        search.offer(found.offsets)
    if orderly(search.problem):
        search.floor = max(search.floor, found.bound)
        if search.capacity is not None and found.status == "infeasible":
            search.floor = max(search.floor, search.capacity + 1)
    search.expired()
    if found.interrupted:
        raise KeyboardInterrupt


def fits(problem: Problem, capacity: int, nodes: int) -> bool | None:
    """Whether a packing within a capacity exists; None if the nodes did not suffice to tell."""
    if problem.features - HONOURS or not orderly(problem):
        return None
    status = packing_problem(problem).fit(capacity, nodes=nodes).status
    return {"feasible": True, "optimal": True, "infeasible": False}.get(status)


def lowest_peak(problem: Problem, nodes: int) -> int | None:
    """Smallest peak, if it can be proven with so many nodes."""
    if problem.features - HONOURS:
        return None
    found = packing_problem(problem).minimise(nodes=nodes)
    return found.peak if found.status == "optimal" else None


def orderly(problem: Problem) -> bool:
    """Whether of two buffers that are alive together one must lie above the other throughout.

    The search decides who is above once for each pair. Where windows leave a buffer's low bytes free, two buffers could lie above one
    another in turn, and an exhausted search has not seen that.
    """
    return bool((problem.parts.low == 0).all())


def _columns(problem: Problem) -> tuple[Ints, Ints, Ints]:
    size, alignment, pin = (np.ascontiguousarray(column) for column in (problem.size, problem.alignment, problem.pin))
    return size, alignment, pin


def _hint(problem: Problem) -> Ints | None:
    return problem.hint if (problem.hint >= 0).any() else None


def _seconds(search: Search) -> float:
    remaining = search.remaining()
    return math.inf if remaining is None else remaining
