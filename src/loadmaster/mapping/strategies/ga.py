"""Standard genetic algorithm: tournaments, simulated binary crossover, polynomial mutation; by the
pymoo library."""

from __future__ import annotations

from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies.pymoo_search import minimise


def run(search: Search) -> None:
    """Evolve a population."""
    minimise(search, "GA", "ga")


STRATEGY = Strategy(run)
