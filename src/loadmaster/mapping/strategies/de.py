"""Differential evolution, DE/rand/1/bin, by the pymoo library."""

from __future__ import annotations

from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies.pymoo_search import minimise


def run(search: Search) -> None:
    """Evolve a population."""
    minimise(search, "DE", "de")


STRATEGY = Strategy(run)
