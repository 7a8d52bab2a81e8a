"""Problems as the native core takes them, and its answers as strategies want them."""

from __future__ import annotations

import numpy as np

from loadmaster import _native
from loadmaster.allocation.problem import Problem
from loadmaster.allocation.search_state import Search
from loadmaster.core.arrays import Ints
from loadmaster.core.deadline import Deadline
from loadmaster.core.effort import Effort

HONOURS = frozenset({"alignment", "pins", "gaps", "windows"})
"""What the native core can do beyond lifetimes and sizes."""


def packing_problem(problem: Problem) -> _native.PackingProblem:
    """The problem as the native core takes it; O(n)."""
    return _native.PackingProblem(*_columns(problem), *problem.sections)


def run(search: Search, strategy: str, *, in_passing: bool = False) -> None:
    """Offer what one of the native strategies finds; ``in_passing``: of ``auto`` only the greedy
    orders and the exact search."""
    within = limits(search.seed, search.threads, search.deadline, search.effort)
    capacity = -1 if search.capacity is None else search.capacity
    found = packing_problem(search.problem).search(
        strategy,
        capacity=capacity,
        bound=search.bound.bytes,
        hint=_hint(search.problem),
        effort=within,
        in_passing=in_passing,
    )
    for name, more in found.counters.items():
        search.count(name, more)
    if found.offsets is not None:
        search.offer(found.offsets)
    search.floor = max(search.floor, found.floor)
    search.interrupted |= found.interrupted


def limits(seed: int, threads: int, deadline: Deadline, effort: Effort) -> _native.Effort:
    """How long to look, as the native core takes it."""
    return _native.Effort(
        seed=seed % 2**64, threads=threads, seconds=deadline.left(), work=effort.work
    )


def allocate(problem: Problem, capacity: int | None, effort: _native.Effort) -> _native.Packed:
    """The whole way from demands to a checked answer, for problems without in-place pairs and
    conflicts."""
    members = [member for group in problem.aliases for member in group]
    first = np.cumsum([0, *(len(group) for group in problem.aliases)], dtype=np.int64)
    member, shift = np.array(members, dtype=np.int64).reshape(-1, 2).T
    low, high = np.array(problem.reserved, dtype=np.int64).reshape(-1, 2).T
    size, alignment, pin = _columns(problem)
    return _native.allocate(
        size,
        alignment,
        pin,
        np.ascontiguousarray(problem.hint),
        *problem.sections,
        first,
        np.ascontiguousarray(member),
        np.ascontiguousarray(shift),
        np.ascontiguousarray(low),
        np.ascontiguousarray(high),
        -1 if capacity is None else capacity,
        effort,
    )


def in_order(problem: Problem, order: Ints, best_fit: bool = False) -> Ints:
    """Offsets when buffers are placed one after another, each at its lowest gap or its tightest."""
    return (
        packing_problem(problem)
        .place_in_order(np.ascontiguousarray(order, dtype=np.int64), best_fit)
        .offsets
    )


def apart(problem: Problem, order: Ints, best_fit: bool = False) -> Ints:
    """`in_order` for buffers that conflict by pairs."""
    return _native.place_apart(
        *_columns(problem),
        *problem.neighbours,
        np.ascontiguousarray(order, dtype=np.int64),
        best_fit,
    ).offsets


def fits(problem: Problem, capacity: int, nodes: int) -> bool | None:
    """Whether a packing within a capacity exists; None if the nodes did not suffice to tell."""
    if problem.features - HONOURS:
        return None
    status = packing_problem(problem).fit(capacity, nodes=nodes).status
    if status == "infeasible":
        return False if orderly(problem) else None
    return True if status in ("feasible", "optimal") else None


def lowest_peak(problem: Problem, nodes: int) -> int | None:
    """Smallest peak, if it can be proven with so many nodes."""
    if problem.features - HONOURS:
        return None
    found = packing_problem(problem).minimise(nodes=nodes)
    return found.peak if found.status == "optimal" else None


def orderly(problem: Problem) -> bool:
    """Whether of two buffers that are alive together one must lie above the other throughout.

    The search decides who is above once for each pair. Where windows leave a buffer's low bytes
    free, two buffers could lie above one another in turn, and an exhausted search has not seen
    that.
    """
    return bool((problem.parts.low == 0).all())


def _columns(problem: Problem) -> tuple[Ints, Ints, Ints]:
    size, alignment, pin = (
        np.ascontiguousarray(column) for column in (problem.size, problem.alignment, problem.pin)
    )
    return size, alignment, pin


def _hint(problem: Problem) -> Ints | None:
    return problem.hint if (problem.hint >= 0).any() else None
