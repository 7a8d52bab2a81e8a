"""Evolution strategies: (1+lambda) and TBPSA, ours; CMA-ES, by the cma library."""

from __future__ import annotations

import warnings

import numpy as np

from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies.vectors import dimensions, library, values

_OFFSPRING = 100
"""Children of a generation."""
_DENSE = 400
"""Coordinates up to which CMA-ES learns all correlations; beyond, scales only."""


def run_one_plus_lambda(search: Search) -> None:
    """(1+lambda)-ES with the one-fifth rule: the step grows while more than a fifth of the children are better (Rechenberg, 1973)."""
    generator = np.random.default_rng(search.seed)
    size = dimensions(search)
    parent = generator.random(size)
    best, step = float(values(search, parent[None, :])[0]), 0.3
    while not search.done:
        children = _inside(parent + step * generator.standard_normal((_OFFSPRING, size)))
        scores = values(search, children)
        step = float(np.clip(step * np.exp((np.mean(scores < best) - 0.2) / 3), 1e-4, 1.0))
        if scores.min() <= best:
            parent, best = children[scores.argmin()], float(scores.min())


def run_tbpsa(search: Search) -> None:
    """Test-based population size adaptation (Hellwig and Beyer, 2016): a population that grows while there is no significant progress.

    Children are spread around the mean of the better quarter, each with a step size of its own that it inherits and mutates.
    """
    generator = np.random.default_rng(search.seed)
    size = dimensions(search)
    mean, step, count = np.full(size, 0.5), 0.3, _OFFSPRING
    before: np.ndarray | None = None
    while not search.done:
        steps = step * np.exp(generator.standard_normal(count) / np.sqrt(2 * size))
        children = _inside(mean + steps[:, None] * generator.standard_normal((count, size)))
        scores = values(search, children)
        if search.done:
            return
        better = scores.argsort(kind="stable")[: max(1, count // 4)]
        mean, step = children[better].mean(axis=0), float(np.exp(np.log(steps[better]).mean()))
        elite = scores[better]
        if before is not None:
            spread = np.sqrt(elite.var() / len(elite) + before.var() / len(before)) + 1e-300
            progress = (before.mean() - elite.mean()) / spread > 2.0
            count = int(np.clip(count * (0.84 if progress else 1.2), _OFFSPRING, 20 * _OFFSPRING))
        before = elite


def run_cma_es(search: Search) -> None:
    """CMA-ES (Hansen, 2016), started afresh when it has converged."""
    cma = library("cma", "cma-es")
    restarts = 0
    while not search.done:
        options = {"bounds": [0, 1], "seed": 1 + (search.seed * 1000 + restarts) % (2**31), "verbose": -9, "popsize": _OFFSPRING}
        options |= {"CMA_diagonal": dimensions(search) > _DENSE}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = np.random.default_rng(search.seed + restarts).random(dimensions(search))
            optimiser = cma.CMAEvolutionStrategy(start, 0.3, options)
            while not search.done and not optimiser.stop():
                points = optimiser.ask()
                scores = values(search, np.array(points))
                # What was beyond the budget scores infinity, which the library does not take.
                optimiser.tell(points, np.where(np.isfinite(scores), scores, 1e300).tolist())
        restarts += 1


def _inside(points: np.ndarray) -> np.ndarray:
    """Points mirrored at the faces of the unit cube."""
    folded = np.abs(points) % 2.0
    return np.asarray(np.where(folded > 1.0, 2.0 - folded, folded))


ONE_PLUS_LAMBDA = Strategy("es", run_one_plus_lambda)
TBPSA = Strategy("tbpsa", run_tbpsa)
CMA_ES = Strategy("cma-es", run_cma_es)
