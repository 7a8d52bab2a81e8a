"""Standard genetic algorithm, differential evolution and particle swarm, by the pymoo library with its own defaults."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies.vectors import dimensions, library, values

_POPULATION = 100
"""Genomes of a generation."""


def run_ga(search: Search) -> None:
    """Tournaments, simulated binary crossover, polynomial mutation."""
    _run(search, library("pymoo.algorithms.soo.nonconvex.ga", "ga").GA(pop_size=_POPULATION))


def run_de(search: Search) -> None:
    """DE/rand/1/bin."""
    _run(search, library("pymoo.algorithms.soo.nonconvex.de", "de").DE(pop_size=_POPULATION))


def run_pso(search: Search) -> None:
    """Particle swarm with adaptive coefficients."""
    _run(search, library("pymoo.algorithms.soo.nonconvex.pso", "pso").PSO(pop_size=_POPULATION))


def _run(search: Search, algorithm: Any) -> None:
    problem = library("pymoo.core.problem", "ga").Problem(n_var=dimensions(search), n_obj=1, xl=0.0, xu=1.0)
    static = library("pymoo.problems.static", "ga").StaticProblem
    evaluator = library("pymoo.core.evaluator", "ga").Evaluator()
    algorithm.setup(problem, termination=("n_gen", WHOLE_LIMIT), seed=search.seed % 2**31, verbose=False)
    while not search.done:
        asked = algorithm.ask()
        scores = values(search, asked.get("X").astype(np.float64))
        evaluator.eval(static(problem, F=np.where(np.isfinite(scores), scores, 1e300)[:, None]), asked)
        algorithm.tell(infills=asked)


GA = Strategy("ga", run_ga)
DE = Strategy("de", run_de)
PSO = Strategy("pso", run_pso)
