"""Best fit: buffers in the order in which they are born, each into the tightest gap, as
TensorFlow's BFC allocator does."""

from __future__ import annotations

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.gap_placer import place
from loadmaster.allocation.problem import Problem
from loadmaster.allocation.search_state import Search, Strategy
from loadmaster.core.arrays import Ints


def run(search: Search) -> None:
    """Place once."""
    problem = search.problem
    if problem.features <= native.HONOURS:
        native.run(search, "best-fit")
        return
    search.offer(place(problem, order(problem), best_fit=True))


def order(problem: Problem) -> Ints:
    """By birth; of those born together, the largest first."""
    return np.lexsort((np.arange(len(problem)), -problem.size, problem.lower))


STRATEGY = Strategy(
    frozenset({"alignment", "pins", "gaps", "windows", "in-place pairs", "conflict pairs"}), run
)
