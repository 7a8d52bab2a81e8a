"""(1+lambda) evolution strategy with the one-fifth rule (Rechenberg, 1973).

The step grows while more than a fifth of the children are better than their parent, and shrinks
else.
"""

from __future__ import annotations

import numpy as np

from loadmaster.mapping.group_search import MappingSearch, MappingStrategy
from loadmaster.mapping.strategies.vectors import dimensions, mirrored, values

_OFFSPRING = 100


def run(search: MappingSearch) -> None:
    """Mutate the best point so far until the search is done."""
    generator = np.random.default_rng(search.seed)
    size = dimensions(search)
    parent = generator.random(size)
    best, step = float(values(search, parent[None])[0]), 0.3
    while not search.done:
        children = mirrored(parent + step * generator.standard_normal((_OFFSPRING, size)))
        scores = values(search, children)
        step = float(np.clip(step * np.exp((np.mean(scores < best) - 0.2) / 3), 1e-4, 1.0))
        if scores.min() <= best:
            parent, best = children[scores.argmin()], float(scores.min())


STRATEGY = MappingStrategy(run)
