"""Strategies by name, each from its file; see :class:`loadmaster.core.registry.Registry`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.core.errors import AllocationError
from loadmaster.core.registry import Registry

if TYPE_CHECKING:
    from loadmaster.allocation.search_state import Strategy

STRATEGIES: Registry[Strategy] = Registry(
    "loadmaster.allocation.strategies", "STRATEGY", "strategy", AllocationError
)

_ALWAYS = {"reserved ranges", "aliases"}
"""What is taken care of before any strategy sees a problem."""


def able_strategy(name: str, features: frozenset[str]) -> Strategy:
    """The strategy of a name, for a problem with some features.

    Raises
    ------
    AllocationError
        If there is none of that name, or it cannot honour a feature; then with the strategies that
        can.
    """
    chosen = STRATEGIES.find(name)
    beyond = sorted(features - chosen.honours - _ALWAYS)
    if beyond:
        able = [
            other
            for other in STRATEGIES.names
            if features <= STRATEGIES.find(other).honours | _ALWAYS
        ]
        use = (
            f"use {' or '.join(able)}"
            if able
            else "no strategy honours all that is asked for: leave some of it out"
        )
        raise AllocationError(f"strategy {name!r} cannot honour {' and '.join(beyond)}: {use}")
    return chosen
