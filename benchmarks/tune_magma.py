"""Tune MAGMA's rates by Bayesian optimisation: ``python -m benchmarks.tune_magma DIR [--trials N]
[--seeds N]``.

DIR is a folder with M3E's ``instances``. What is minimised is the mean logarithm of the makespan
after 10,000 samples over its bound, on groups and settings where mappings differ. What comes out of
the default arguments is ``magma.DEFAULTS``. Needs the extra `search`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from loadmaster.cost.analyse import analyse
from loadmaster.mapping.bounds.group_bounds import group_bound
from loadmaster.mapping.group import group_of
from loadmaster.mapping.group_search import MappingSearch
from loadmaster.mapping.strategies import magma
from loadmaster.targets.load import target
from loadmaster.workloads.frontends.job_list import read_job_list

CASES = (
    ("conv.1", "m3e-s2", 4),
    ("lang.1", "m3e-s5", 1),
    ("recom.1", "m3e-s6", 16),
    ("mix.1", "m3e-s4", 1),
    ("mix.2", "m3e-s2", 1),
    ("conv.2", "m3e-s5", 1),
)

PAPER = {
    "population": 100,
    "elites": 0.1,
    "parents": 0.1,
    "mutation": 0.05,
    "crossover-gen": 0.9,
    "crossover-rg": 0.05,
    "crossover-accel": 0.05,
}


def main() -> None:
    import optuna

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--trials", type=int, default=30, metavar="N")
    parser.add_argument("--seeds", type=int, default=2, metavar="N")
    arguments = parser.parse_args()
    problems = []
    for name, setting, bandwidth in CASES:
        table = analyse(
            read_job_list(arguments.folder / "instances" / f"{name}.csv"),
            target(setting),
            "maestro",
        )
        group = group_of(table, bandwidth * 1e9)
        problems.append((group, group_bound(group)))

    def excess(settings: dict[str, float]) -> float:
        runs = [
            (group, bound, seed) for group, bound in problems for seed in range(arguments.seeds)
        ]
        searches = [
            MappingSearch(group, bound, seed=seed, samples=10_000, settings=settings)
            for group, bound, seed in runs
        ]
        for search in searches:
            magma.run(search)
        return float(np.mean([math.log(search.score / search.bound.score) for search in searches]))

    def objective(trial: optuna.Trial) -> float:
        return excess(
            {
                "population": trial.suggest_int("population", 20, 200, step=20),
                "elites": trial.suggest_float("elites", 0.02, 0.3),
                "parents": trial.suggest_float("parents", 0.02, 0.5),
                "mutation": trial.suggest_float("mutation", 0.002, 0.1, log=True),
                "crossover-gen": trial.suggest_float("crossover-gen", 0.0, 1.0),
                "crossover-rg": trial.suggest_float("crossover-rg", 0.0, 1.0),
                "crossover-accel": trial.suggest_float("crossover-accel", 0.0, 0.5),
            }
        )

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial(PAPER)
    study.optimize(objective, n_trials=arguments.trials)
    print(
        f"the paper's rates: {excess(PAPER):.4%} over the bound; best of {arguments.trials} trials:"
        f" {study.best_value:.4%}"
    )
    for name, value in study.best_params.items():
        print(f"    {name!r}: {value:.4g},")


if __name__ == "__main__":
    main()
