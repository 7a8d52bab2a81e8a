"""Auto: a short exact search, then the simple strategies, exact search from the best of them, and
the others with what is left.

It begins with every packing that the simple ones find and only ever accepts lower ones, so it is
never worse than they are. What works on lifetimes is native (``native/allocation/portfolio.cpp``);
here is what in-place pairs and conflict pairs need.
"""

from __future__ import annotations

from loadmaster.allocation import native
from loadmaster.allocation.search_state import Search, Strategy
from loadmaster.allocation.strategies import best_fit, greedy, in_place, local_search


def run(search: Search) -> None:
    """Stop as soon as a bound is met."""
    features = search.problem.features
    if "in-place pairs" in features:
        in_place.run(search, run)
    elif features <= native.HONOURS:
        native.run(search, "auto")
    else:
        for each in (greedy.run, best_fit.run, local_search.run):
            if not search.done and not search.expired():
                each(search)


STRATEGY = Strategy(native.HONOURS | {"in-place pairs", "conflict pairs"}, run)
