"""Random search: what every other strategy has to beat."""

from __future__ import annotations

import numpy as np

from loadmaster.mapping.group_search import Genome, MappingSearch, MappingStrategy


def run(search: MappingSearch) -> None:
    """Independent random genomes."""
    generator = np.random.default_rng(search.seed)
    while not search.done:
        search.scores(*random_genomes(generator, min(search.slice, 1000), search))


def random_genomes(generator: np.random.Generator, count: int, search: MappingSearch) -> Genome:
    """Genomes with every core and every priority equally likely, a row each."""
    shape = (count, search.group.jobs)
    core = generator.integers(0, search.group.cores, shape, dtype=np.int32)
    return core, generator.integers(0, 2**32, shape, dtype=np.uint32)


STRATEGY = MappingStrategy(run)
