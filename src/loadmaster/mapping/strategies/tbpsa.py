"""TBPSA, test-based population size adaptation (Hellwig and Beyer, 2016): the population grows
while there is no significant progress.

Children are spread around the mean of the better quarter, each with a step size of its own that it
inherits and mutates.
"""

from __future__ import annotations

import numpy as np

from loadmaster.mapping.group_search import MappingSearch, MappingStrategy
from loadmaster.mapping.strategies.vectors import dimensions, mirrored, values

_LEAST = 100
"""Children of the smallest population."""


def run(search: MappingSearch) -> None:
    """Move the mean until the search is done."""
    generator = np.random.default_rng(search.seed)
    size = dimensions(search)
    mean, step, count = np.full(size, 0.5), 0.3, _LEAST
    before: np.ndarray | None = None
    while not search.done:
        steps = step * np.exp(generator.standard_normal(count) / np.sqrt(2 * size))
        children = mirrored(mean + steps[:, None] * generator.standard_normal((count, size)))
        scores = values(search, children)
        if search.done:
            return
        better = scores.argsort(kind="stable")[: max(1, count // 4)]
        mean = children[better].mean(axis=0)
        step = float(np.exp(np.log(steps[better]).mean()))
        elite = scores[better]
        if before is not None:
            spread = np.sqrt(elite.var() / len(elite) + before.var() / len(before)) + 1e-300
            progress = (before.mean() - elite.mean()) / spread > 2.0
            count = int(np.clip(count * (0.84 if progress else 1.2), _LEAST, 20 * _LEAST))
        before = elite


STRATEGY = MappingStrategy(run)
