"""CMA-ES (Hansen, 2016), started afresh when it has converged; by the cma library."""

from __future__ import annotations

import warnings

import numpy as np

from loadmaster.core.errors import package
from loadmaster.mapping.group_search import MappingSearch, MappingStrategy
from loadmaster.mapping.strategies.vectors import dimensions, values

_OFFSPRING = 100
_DENSE = 400
"""Coordinates up to which CMA-ES learns all correlations; beyond, scales only."""


def run(search: MappingSearch) -> None:
    """Restart from a random point until the search is done."""
    cma = package("cma", "strategy 'cma-es'")
    restarts = 0
    while not search.done:
        options = {
            "bounds": [0, 1],
            "seed": 1 + (search.seed * 1000 + restarts) % (2**31),
            "verbose": -9,
            "popsize": _OFFSPRING,
        }
        options |= {"CMA_diagonal": dimensions(search) > _DENSE}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = np.random.default_rng(search.seed + restarts).random(dimensions(search))
            optimiser = cma.CMAEvolutionStrategy(start, 0.3, options)
            while not search.done and not optimiser.stop():
                points = optimiser.ask()
                optimiser.tell(points, values(search, np.array(points)).tolist())
        restarts += 1


STRATEGY = MappingStrategy(run)
