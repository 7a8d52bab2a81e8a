"""Strategies by name, each from its file; see :class:`loadmaster.core.registry.Registry`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.core.errors import MappingError
from loadmaster.core.registry import Registry

if TYPE_CHECKING:
    from loadmaster.mapping.group_search import MappingStrategy

STRATEGIES: Registry[MappingStrategy] = Registry(
    "loadmaster.mapping.strategies", "STRATEGY", "strategy", MappingError
)
