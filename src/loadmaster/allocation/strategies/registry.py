"""Strategies by name; each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from loadmaster.allocation.search_state import Strategy
from loadmaster.core.arguments import require_known
from loadmaster.core.errors import AllocationError

_HOMES = {
    "auto": "auto",
    "best-fit": "best_fit",
    "greedy": "greedy",
    "telamalloc": "telamalloc",
    "exact": "exact",
    "local-search": "local_search",
    "cp-sat": "cp_sat",
}

NAMES = tuple(_HOMES)


def strategy(name: str) -> Strategy:
    """Look up a strategy.

    Raises
    ------
    AllocationError
        If there is none of that name.
    """
    require_known("strategy", name, NAMES, AllocationError)
    found: Strategy = import_module(f"loadmaster.allocation.strategies.{_HOMES[name]}").STRATEGY
    return found


def require(chosen: Strategy, features: frozenset[str]) -> None:
    """Refuse, by name, what a strategy cannot honour."""
    beyond = sorted(features - chosen.honours - {"reserved ranges", "aliases"})
    if beyond:
        able = [name for name in NAMES if features <= strategy(name).honours | {"reserved ranges", "aliases"}]
        use = f"use {' or '.join(able)}" if able else "no strategy honours all that is asked for: leave some of it out"
        raise AllocationError(f"strategy {chosen.name!r} cannot honour {' and '.join(beyond)}: {use}")
