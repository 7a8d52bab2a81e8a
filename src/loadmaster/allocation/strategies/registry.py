"""Strategies by name, each from its file; see :class:`loadmaster.core.registry.Registry`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.core.errors import AllocationError
from loadmaster.core.registry import Registry

if TYPE_CHECKING:
    from loadmaster.allocation.native import PackingStrategy

STRATEGIES: Registry[PackingStrategy] = Registry(
    "loadmaster.allocation.strategies", "STRATEGY", "strategy", AllocationError
)


def require_able(name: str, features: frozenset[str]) -> None:
    """Raise `AllocationError` if a strategy cannot honour a feature, with those that can."""
    beyond = sorted(features - STRATEGIES.find(name).honours)
    if beyond:
        able = [other for other in STRATEGIES.names if features <= STRATEGIES.find(other).honours]
        raise AllocationError(
            f"strategy {name!r} cannot honour {' and '.join(beyond)}: use {' or '.join(able)}"
        )
