"""Population-based optimisers of the pymoo library, with its own defaults, on points of the unit cube."""

from __future__ import annotations

import numpy as np

from loadmaster.mapping.group_search import Search
from loadmaster.mapping.strategies.vectors import dimensions, library, values

_POPULATION = 100


def minimise(search: Search, algorithm: str, strategy: str) -> None:
    """Run an algorithm, by its name in pymoo, for a strategy until the search is done.

    Raises
    ------
    MappingError
        If pymoo is not installed.
    """
    problem = library("pymoo.core.problem", strategy).Problem(n_var=dimensions(search), n_obj=1, xl=0.0, xu=1.0)
    static = library("pymoo.problems.static", strategy).StaticProblem
    evaluator = library("pymoo.core.evaluator", strategy).Evaluator()
    module = library(f"pymoo.algorithms.soo.nonconvex.{algorithm.lower()}", strategy)
    optimiser = getattr(module, algorithm)(pop_size=_POPULATION)
    optimiser.setup(problem, termination=("n_gen", 2**62), seed=search.seed % 2**31, verbose=False)
    while not search.done:
        asked = optimiser.ask()
        scores = values(search, asked.get("X").astype(np.float64))
        evaluator.eval(static(problem, F=np.where(np.isfinite(scores), scores, 1e300)[:, None]), asked)
        optimiser.tell(infills=asked)
