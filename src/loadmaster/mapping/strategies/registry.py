"""Strategies by name; each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from loadmaster.errors import MappingError
from loadmaster.mapping.group_search import Strategy

_HOMES = {
    "auto": "auto",
    "magma": "magma",
    "annealing": "annealing",
    "herald": "herald",
    "ai-mt": "ai_mt",
    "random": "random_search",
    "ga": "standard_ga",
    "de": "differential_evolution",
    "es": "one_plus_lambda",
    "cma-es": "cma_es",
    "tbpsa": "tbpsa",
    "pso": "particle_swarm",
    "a2c": "a2c",
    "ppo": "ppo",
}

NAMES = tuple(_HOMES)


def strategy(name: str) -> Strategy:
    """Look up a strategy.

    Raises
    ------
    MappingError
        If there is none of that name, or what it needs is not installed.
    """
    if name not in _HOMES:
        raise MappingError(f"strategy {name!r} is not known: use {', '.join(NAMES)}")
    found: Strategy = import_module(f"loadmaster.mapping.strategies.{_HOMES[name]}").STRATEGY
    return found
