"""Greedy: a family of orders, each buffer at the lowest free gap, the best packing kept.

The first order, by size, is TensorFlow Lite's; the powers of the peak load in a buffer's lifetime
favour what lives through crowded instants.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.gap_placer import place
from loadmaster.allocation.problem import Problem
from loadmaster.allocation.search_state import Search, Strategy
from loadmaster.core.arrays import WHOLE_LIMIT, Floats, Ints

_ORDERS_BELOW = 20_000
"""Buffers up to which all orders are tried in turn."""


def run(search: Search) -> None:
    """Try orders until nothing is left to gain."""
    if search.problem.features <= native.HONOURS:
        native.run(search, "greedy")
        return
    for number, order in enumerate(orders(search.problem)):
        if search.done or (number and (search.expired() or len(search.problem) > _ORDERS_BELOW)):
            break
        search.offer(place(search.problem, order))
        search.count("orders")


def orders(problem: Problem) -> Iterator[Ints]:
    """Orders in which to place buffers, by size first; the user's hints, if any, before
    everything."""
    size, length = problem.size, problem.upper - problem.lower
    index = np.arange(len(problem))
    if (problem.hint >= 0).any():
        yield np.lexsort((index, -size, np.where(problem.hint < 0, WHOLE_LIMIT, problem.hint)))
    yield np.lexsort((index, -length, -size))
    yield np.lexsort((index, -size, -length))
    yield np.lexsort((index, -(size.astype(np.float64) * length)))
    crowd = crowding(problem)
    for power in (8, 6, 4, 2, 1):
        yield np.lexsort((index, -(crowd**power) * size))
    yield np.lexsort((index, -length, -crowd))
    yield np.lexsort((index, -size, problem.lower))


def crowding(problem: Problem) -> Floats:
    """Highest load during each buffer's lifetime, as a share of the highest of all; O(n log n)."""
    parts = problem.parts
    if not len(parts.owner):
        return np.zeros(len(problem))
    times = np.unique(np.concatenate([parts.lower, parts.upper]))
    first, last = np.searchsorted(times, parts.lower), np.searchsorted(times, parts.upper)
    change = np.zeros(len(times), dtype=np.float64)
    np.add.at(change, first, parts.high - parts.low)
    np.add.at(change, last, -(parts.high - parts.low).astype(np.float64))
    levels = [np.cumsum(change)]
    while 2 ** len(levels) <= len(levels[0]):
        step = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1][:-step], levels[-1][step:]))
    depth = np.floor(np.log2(np.maximum(last - first, 1))).astype(np.int64)
    top = np.zeros(len(first))
    for level in np.unique(depth).tolist():
        at = depth == level
        top[at] = np.maximum(levels[level][first[at]], levels[level][last[at] - 2**level])
    crowd = np.zeros(len(problem))
    np.maximum.at(crowd, parts.owner, top)
    return crowd / max(float(levels[0].max()), 1.0)


STRATEGY = Strategy(
    frozenset({"alignment", "pins", "gaps", "windows", "in-place pairs", "conflict pairs"}), run
)
