"""Population-based optimisers of the pymoo library, with its own defaults, on points of the unit
cube."""

from __future__ import annotations

import numpy as np

from loadmaster.core.errors import package
from loadmaster.mapping.group_search import MappingSearch
from loadmaster.mapping.strategies.vectors import dimensions, values

_POPULATION = 100


def minimise(search: MappingSearch, algorithm: str) -> None:
    """Run an algorithm, by its name in pymoo, until the search is done.

    Raises
    ------
    MissingPackageError
        If pymoo is not installed.
    """
    purpose = f"strategy {algorithm.lower()!r}"
    problem = package("pymoo.core.problem", purpose).Problem(
        n_var=dimensions(search), n_obj=1, xl=0.0, xu=1.0
    )
    static = package("pymoo.problems.static", purpose).StaticProblem
    evaluator = package("pymoo.core.evaluator", purpose).Evaluator()
    module = package(f"pymoo.algorithms.soo.nonconvex.{algorithm.lower()}", purpose)
    optimiser = getattr(module, algorithm)(pop_size=_POPULATION)
    optimiser.setup(problem, termination=("n_gen", 2**62), seed=search.seed % 2**31, verbose=False)
    while not search.done:
        asked = optimiser.ask()
        scores = values(search, asked.get("X").astype(np.float64))
        evaluator.eval(static(problem, F=scores[:, None]), asked)
        optimiser.tell(infills=asked)
