"""Auto: a glance by exact search, then the simple strategies, exact search from the best of them, and the others with what is left.

It begins with every packing that the simple ones find and only ever accepts lower ones, so it is never worse than they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmaster.allocation import native
from loadmaster.allocation.search_state import Search, Strategy
from loadmaster.allocation.strategies import best_fit, exact, greedy, local_search, telamalloc
from loadmaster.allocation.strategies import in_place as sharing

_LARGE = 2_000
"""Buffers beyond which strategies that visit all pairs are left out."""
_HUGE = 10_000
"""Buffers beyond which exact search has no chance, and would not fit the stack."""


def run(search: Search) -> None:
    """Stop as soon as a bound is met."""
    features = search.problem.features
    if "in-place pairs" in features:
        sharing.run(search, run)
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
    if search.share > 1:
        return
    if small and search.problem.features <= telamalloc.STRATEGY.honours:
        _run_each(search, [telamalloc.run])
    if small:
        _run_each(search, [local_search.run])


def _run_each(search: Search, runs: Sequence[Callable[[Search], None]]) -> None:
    for each in runs:
        if search.done or search.expired():
            return
        each(search)


STRATEGY = Strategy(native.HONOURS | {"in-place pairs", "conflict pairs"}, run)
