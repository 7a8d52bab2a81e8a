"""MAGMA, the genetic algorithm of M3E (HPCA 2022), after its description; the operators are native
(src/native/mapping/magma.cpp)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loadmaster.core.arguments import require_known
from loadmaster.core.errors import MappingError
from loadmaster.mapping.group import Queues
from loadmaster.mapping.group_search import MappingSearch, MappingStrategy
from loadmaster.mapping.strategies.random import random_genomes

DEFAULTS = {
    "population": 120,
    "elites": 0.136,
    "parents": 0.147,
    "mutation": 0.0414,
    "crossover-gen": 0.456,
    "crossover-rg": 0.568,
    "crossover-accel": 0.0094,
}
"""Population; shares of it that live on and that have children; probabilities: mutation per gene,
the crossovers per child.

Found by `python -m benchmarks.tune_magma`. The paper's are 100, 0.1, 0.1, 0.05, 0.9, 0.05 and 0.05.
"""


def run(search: MappingSearch) -> None:
    """A random population, or one around the warm start, evolved until the budget is spent."""
    evolve(search, settings(search), search.left)


def evolve(search: MappingSearch, values: Mapping[str, float], samples: int) -> Queues:
    """Evolve with these settings for so many samples, and return the best of the population."""
    last = search.taken + samples
    generator = np.random.default_rng(search.seed)
    size = int(values["population"])
    core, priority = random_genomes(generator, size, search)
    if search.warm_start is not None:
        # Half the population are the warm start and mutants of it.
        half = -(-size // 2)
        keep = generator.random((half, 2, search.group.jobs)) >= values["mutation"]
        keep[0] = True
        np.copyto(core[:half], search.warm_start[0], where=keep[:, 0])
        np.copyto(priority[:half], search.warm_start[1], where=keep[:, 1])
    score = search.scores(core, priority)
    elites = max(1, min(size - 1, round(size * values["elites"])))
    parents = max(1, round(size * values["parents"]))
    generation = 0
    while not search.done and (left := min(search.left, last - search.taken)) >= size - elites:
        lives = max(1, min(search.slice // size, left // (size - elites)))
        grown = search.group.native.evolve(
            core,
            priority,
            score,
            mutation=values["mutation"],
            crossover_gen=values["crossover-gen"],
            crossover_rg=values["crossover-rg"],
            crossover_accel=values["crossover-accel"],
            elites=elites,
            parents=parents,
            first_generation=generation,
            generations=lives,
            seed=search.seed,
            threads=search.threads,
        )
        core, priority, score = grown.core, grown.priority, grown.score
        if score.min() < search.score:
            search.queues = search.best(core, priority, score)
        for value in grown.history.tolist():
            search.spent(size - elites, value)
        generation += lives
    return search.best(core, priority, score)


def settings(search: MappingSearch) -> dict[str, float]:
    """The defaults with what the user changed.

    Raises
    ------
    MappingError
        If there is no such setting, or it is out of range.
    """
    for name in search.settings:
        require_known("setting of magma", name, DEFAULTS, MappingError)
    values = DEFAULTS | dict(search.settings)
    if not 2 <= values["population"] <= 100_000:
        raise MappingError(f"population {values['population']:g}: give from 2 to 100,000")
    for name, value in values.items():
        if name != "population" and not 0 <= value <= 1:
            raise MappingError(f"{name} {value:g}: give a share between 0 and 1")
    return values


STRATEGY = MappingStrategy(run, settings=tuple(DEFAULTS))
