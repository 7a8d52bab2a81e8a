"""Particle swarm optimisation with adaptive coefficients, by the pymoo library."""

from __future__ import annotations

from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies.pymoo_search import minimise


def run(search: Search) -> None:
    """Move a swarm."""
    minimise(search, "PSO", "pso")


STRATEGY = Strategy(run)
