"""Auto: a glance by exact search, then the simple strategies, exact search from the best of them, and the others with what is left.

It begins with every packing that the simple ones find and only ever accepts lower ones, so it is never worse than they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.allocation import best_fit, exact, greedy, local_search, native, telamalloc
from loadmaster.allocation.bounds import load_bound
from loadmaster.allocation.reduction import reduce
from loadmaster.allocation.search import Search, Strategy
from loadmaster.buffers import Problem

_LARGE = 2_000
"""Buffers beyond which strategies that visit all pairs are left out."""
_HUGE = 10_000
"""Buffers beyond which exact search has no chance, and would not fit the stack."""
_NO_PAIRS = np.empty((0, 2), dtype=np.int64)


def run(search: Search) -> None:
    """Stop as soon as a bound is met."""
    features = search.problem.features
    if "in-place pairs" in features:
        _in_place(search)
    elif features <= native.HONOURS:
        _timeline(search)
    else:
        _run_each(search, [greedy.run, best_fit.run, local_search.run])


def _timeline(search: Search) -> None:
    native.greedy(search)
    if search.done or search.expired():
        return
    small = len(search.problem) <= _LARGE
    _run_each(search, [exact.glance, best_fit.run, greedy.run] if small else [best_fit.run])
    if len(search.problem) <= _HUGE:
        _run_each(search, [exact.run])
    if small and search.problem.features <= telamalloc.STRATEGY.honours:
        _run_each(search, [telamalloc.run])
    if small:
        _run_each(search, [local_search.run])


def _run_each(search: Search, runs: Sequence[Callable[[Search], None]]) -> None:
    for each in runs:
        if search.done or search.expired():
            return
        each(search)


def _in_place(search: Search) -> None:
    """Solve once with every pair apart, and once with as many sharing as can; the lower one counts."""
    apart = replace(search.problem, in_place=_NO_PAIRS)
    for problem in (replace(apart, aliases=_shared(search.problem)), apart):
        if search.done or search.expired():
            return
        reduced = reduce(problem)
        part = Search(reduced.problem, load_bound(reduced.problem), search.capacity, search.seed, search.threads, search.deadline)
        run(part)
        if part.offsets is not None:
            search.offer(reduced.offsets(problem, part.offsets))
        search.interrupted |= part.interrupted
        search.counters |= part.counters


def _shared(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Groups that may share one address: all pairs in a group are in-place pairs or never alive together."""
    if problem.conflicts is not None:
        return ()
    pairs = {frozenset(pair) for pair in problem.in_place.tolist()}
    group = {buffer: [buffer] for buffer in range(len(problem))}

    def may(one: int, other: int) -> bool:
        together = problem.lower[one] < problem.upper[other] and problem.lower[other] < problem.upper[one]
        pinned = {int(problem.pin[one]), int(problem.pin[other])} - {-1}
        return len(pinned) < 2 and (not together or frozenset((one, other)) in pairs)

    for one, other in problem.in_place.tolist():
        if group[one] is not group[other] and all(may(a, b) for a in group[one] for b in group[other]):
            group[one].extend(group[other])
            for member in group[other]:
                group[member] = group[one]
    return tuple(tuple(members) for buffer, members in group.items() if members[0] == buffer and len(members) > 1)


STRATEGY = Strategy("auto", native.HONOURS | {"in-place pairs", "conflict pairs"}, run)
