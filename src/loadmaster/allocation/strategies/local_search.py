"""Local search over orders: buffers that reach the peak move forward in the order in which gaps are
filled."""

from __future__ import annotations

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.gap_placer import place
from loadmaster.allocation.search_state import Search, Strategy, peak_of
from loadmaster.allocation.strategies.greedy import orders
from loadmaster.core.arrays import Ints

_WORK = 40_000
"""Buffers placed, over all samples: the default budget where native code cannot do it."""
_PER_PAIR = 16
"""Samples at most for every pair of buffers: small sets have few orders."""


def run(search: Search) -> None:
    """Start from the best greedy order; then move a culprit and keep what is no worse."""
    problem, random = search.problem, np.random.default_rng(search.seed)
    if problem.features <= native.HONOURS:
        native.run(search, "local-search")
        return
    order, peak, offsets = _start(search)
    for _ in range(
        min(search.effort.share(_WORK) // len(problem) + 1, _PER_PAIR * len(problem) ** 2)
    ):
        if search.done or search.expired():
            return
        candidate = _moved(order, offsets, search, random)
        search.count("samples")
        found = place(problem, candidate)
        if peak_of(problem, found) <= peak:
            order, offsets, peak = candidate, found, peak_of(problem, found)
            search.offer(found)


def _start(search: Search) -> tuple[Ints, int, Ints]:
    best: tuple[int, Ints, Ints] | None = None
    for order in orders(search.problem):
        offsets = place(search.problem, order)
        search.count("samples")
        search.offer(offsets)
        if best is None or peak_of(search.problem, offsets) < best[0]:
            best = (peak_of(search.problem, offsets), order, offsets)
        if search.done or search.expired():
            break
    assert best is not None
    return best[1], best[0], best[2]


def _moved(order: Ints, offsets: Ints, search: Search, random: np.random.Generator) -> Ints:
    """A buffer from the top of the packing goes to a random earlier position, and sometimes any two
    change places."""
    size = search.problem.size
    top = offsets + size
    high = np.flatnonzero(top[order] >= np.quantile(top, 0.95))
    at = int(random.choice(high))
    to = int(random.integers(0, at + 1))
    moved = np.concatenate([order[:to], order[at : at + 1], order[to:at], order[at + 1 :]])
    if random.random() < 0.5:
        one, other = random.integers(0, len(order), 2)
        moved[[one, other]] = moved[[other, one]]
    return moved


STRATEGY = Strategy(
    frozenset({"alignment", "pins", "gaps", "windows", "in-place pairs", "conflict pairs"}), run
)
