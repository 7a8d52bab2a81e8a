"""Strategies by name; each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from loadmaster.core.arguments import require_known
from loadmaster.core.errors import MappingError
from loadmaster.mapping.group_search import Strategy

_HOMES = {
    "auto": ("auto", "STRATEGY"),
    "magma": ("magma", "STRATEGY"),
    "annealing": ("annealing", "STRATEGY"),
    "herald": ("herald", "STRATEGY"),
    "ai-mt": ("ai_mt", "STRATEGY"),
    "random": ("random_search", "STRATEGY"),
    "ga": ("populations", "GA"),
    "de": ("populations", "DE"),
    "pso": ("populations", "PSO"),
    "es": ("evolution_strategies", "ONE_PLUS_LAMBDA"),
    "cma-es": ("evolution_strategies", "CMA_ES"),
    "tbpsa": ("evolution_strategies", "TBPSA"),
    "a2c": ("reinforcement", "A2C"),
    "ppo": ("reinforcement", "PPO"),
}

NAMES = tuple(_HOMES)


def strategy(name: str) -> Strategy:
    """Look up a strategy.

    Raises
    ------
    MappingError
        If there is none of that name.
    """
    require_known("strategy", name, NAMES, MappingError)
    module, constant = _HOMES[name]
    found: Strategy = getattr(import_module(f"loadmaster.mapping.strategies.{module}"), constant)
    return found
