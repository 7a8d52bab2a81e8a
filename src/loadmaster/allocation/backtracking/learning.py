"""Learn from an oracle where TelaMalloc's searches should go back to.

``python -m loadmaster.allocation.backtracking.learning [FILE.csv ...] --output MODEL.json``
records, fits and writes a model.

Where a search has several placements to blame, the oracle tries to go back to each of them and
counts the steps from there to a packing (those missing at its horizon count as many more).
Gradient-boosted trees are fitted to how much worse than the best each target is, and rank the
targets of later searches: ``Options(trees=read_trees(Path("MODEL.json")))``. Searches are recorded
on the files of buffers that are given, at their load bound and a little above it; without any, on
generated ones. The published model chooses backtrack targets, too; its features are not public, so
that these are ours. Needs scikit-learn (``pip install "loadmaster[learn]"``); using a model does
not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.allocation.backtracking.trees import Trees, read_trees, write_trees
from loadmaster.allocation.native import lower_bound, packing_problem
from loadmaster.allocation.problem import FREE, Problem
from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.errors import AllocationError, LoadmasterError, package

FEATURES = (
    "rank from the latest",
    "targets",
    "levels back",
    "levels back / buffers",
    "depth / buffers",
    "candidates left",
    "visits",
    "size / size of who failed",
    "lifetime / lifetime of who failed",
    "offset / capacity",
    "bytes waiting at its slot / capacity",
    "alive where it failed",
)
"""What the native core tells of each target."""

BUNDLED = Path(__file__).with_name("backtrack_targets.json")
"""Trained on `generated` instances with seed 0."""

HORIZON = 300
"""Steps for which the oracle tries each target."""

_STEPS, _EVERY = 3_000, 4
"""Steps of each recorded search, and every how many of its choices the oracle is asked."""


@dataclass(frozen=True)
class BacktrackSamples:
    """A row for each target that the oracle tried: features, steps from there, and which backtrack
    it was part of."""

    features: Floats
    cost: Floats
    group: Ints

    @property
    def regret(self) -> Floats:
        """Steps beyond those of the best target of the same backtrack, in horizons."""
        least = np.full(int(self.group.max(initial=-1)) + 1, np.inf)
        np.minimum.at(least, self.group, self.cost)
        regret: Floats = (self.cost - least[self.group]) / HORIZON
        return regret


def record(cases: Iterable[tuple[Problem, int]]) -> BacktrackSamples:
    """Search within each capacity, with the oracle at every fourth choice."""
    tables = [(np.empty((0, len(FEATURES))), np.empty(0), np.empty(0, dtype=np.int64))]
    groups = 0
    for problem, capacity in cases:
        recorded = packing_problem(problem).record_backtracks(
            capacity, steps=_STEPS, every=_EVERY, horizon=HORIZON
        )
        if recorded.interrupted:
            raise KeyboardInterrupt
        tables.append((recorded.features, recorded.cost, recorded.group + groups))
        groups += int(recorded.group.max(initial=-1)) + 1
    return BacktrackSamples(*(np.concatenate(column) for column in zip(*tables, strict=True)))


def fit(samples: BacktrackSamples, seed: int = 0, trees: int = 60, depth: int = 3) -> Trees:
    """Gradient-boosted regression trees for the regret of a target.

    Raises
    ------
    MissingPackageError
        If scikit-learn is not installed.
    AllocationError
        If nothing was recorded.
    """
    regressor = package("sklearn.ensemble", "learning").GradientBoostingRegressor
    if not len(samples.cost):
        raise AllocationError(
            "learning: no search had to choose where to go back to: give instances that are harder"
            " to pack"
        )
    model = regressor(
        n_estimators=trees, max_depth=depth, learning_rate=0.1, subsample=0.7, random_state=seed
    )
    model.fit(samples.features, samples.regret)
    return _join([estimator.tree_ for (estimator,) in model.estimators_], model.learning_rate)


def _join(trees: list[Any], weight: float) -> Trees:
    """Return scikit-learn's trees as one forest, with leaves of this weight."""
    sizes = [tree.node_count for tree in trees]
    root = np.cumsum([0, *sizes[:-1]])

    def column(name: str) -> Any:
        """Return a figure of the nodes of all trees."""
        return np.concatenate([getattr(tree, name) for tree in trees])

    leaf, first = column("children_left") < 0, np.repeat(root, sizes)
    return Trees(
        root,
        np.where(leaf, -1, column("feature")),
        np.where(leaf, 0, column("children_left") + first),
        np.where(leaf, 0, column("children_right") + first),
        np.where(leaf, 0.0, column("threshold")),
        np.where(leaf, weight * column("value")[:, 0, 0], 0.0),
    )


def generated(count: int, seed: int) -> Iterator[Problem]:
    """Tight sets of 60 to 200 buffers: cut from one rectangle, the same with shorter lifetimes, and
    layers of few distinct sizes."""
    for number in range(count):
        random = np.random.default_rng((seed, number))
        size = int(random.integers(60, 201))
        lower, upper, bytes_ = (
            _random_layers(size, random)
            if number % 3 == 2
            else _cut_rectangle(size, random, 0.1 * (number % 3))
        )
        ones = np.ones(len(lower), dtype=np.int64)
        yield Problem(lower, upper, bytes_, ones, FREE * ones, FREE * ones)


def _cut_rectangle(
    count: int, random: np.random.Generator, jitter: float
) -> tuple[Ints, Ints, Ints]:
    """Return the bounds and sizes of ``count`` buffers: one rectangle cut at random, every lower
    bound then raised by up to ``jitter`` of the lifetime."""
    pieces = [(0, 1 << 16, 0, 1 << 10)]
    while len(pieces) < count:
        at = max(
            range(len(pieces)),
            key=lambda i: (
                (pieces[i][1] - pieces[i][0])
                * (pieces[i][3] - pieces[i][2])
                * random.uniform(0.3, 1.3)
            ),
        )
        left, right, low, high = pieces.pop(at)
        if high - low < 8 or random.random() < 0.5:
            cut = left + 1 + int((right - left - 2) * random.beta(2, 2))
            pieces += [(left, cut, low, high), (cut, right, low, high)]
        else:
            cut = low + 1 + int((high - low - 2) * random.beta(2, 2))
            pieces += [(left, right, low, cut), (left, right, cut, high)]
    left, right, low, high = np.array(pieces, dtype=np.int64)[random.permutation(count)].T
    length = right - left
    return (
        left + (random.random(count) * jitter * length).astype(np.int64),
        right.copy(),
        1024 * (high - low),
    )


def _random_layers(count: int, random: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Return the bounds and sizes of ``count`` buffers: most lifetimes short, twelve distinct
    sizes."""
    span = count // 2
    lower = random.integers(0, span, count)
    length = np.where(
        random.random(count) < 0.7,
        random.integers(1, max(span // 20, 3), count),
        random.integers(1, max(span // 3, 4), count),
    )
    return (
        lower,
        np.maximum(np.minimum(lower + length, span), lower + 1),
        random.choice(1024 * random.integers(1, 80, 12), count),
    )


def at_limits(
    problems: Iterable[Problem], limits: Iterable[float] = (1.0, 1.03)
) -> Iterator[tuple[Problem, int]]:
    """Yield each problem at its load bound and a little above it."""
    chosen = tuple(limits)
    for problem in problems:
        for limit in chosen:
            yield problem, int(lower_bound(problem).bytes * limit)


def bundled() -> Trees:
    """Return the model that comes with Loadmaster."""
    return read_trees(BUNDLED)


def main() -> None:
    """Record, fit, and write a model."""
    parser = argparse.ArgumentParser(
        prog="python -m loadmaster.allocation.backtracking.learning",
        description=(__doc__ or "").partition("\n\n")[0],
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE.csv",
        help="buffers to learn from; none: generated ones",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="MODEL.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--instances", type=int, default=150, help="generated sets, without files")
    arguments = parser.parse_args()
    from loadmaster.allocation.buffers_csv import read_buffers

    try:
        package("sklearn.ensemble", "learning")  # before minutes of work, not after them
        problems = (
            map(read_buffers, arguments.files)
            if arguments.files
            else generated(arguments.instances, arguments.seed)
        )
        samples = record(at_limits(problems))
        write_trees(arguments.output, fit(samples, arguments.seed))
    except LoadmasterError as error:
        parser.exit(2, f"learning: {error}\n")
    print(
        f"{len(set(samples.group.tolist()))} backtracks, {len(samples.cost)} targets; wrote"
        f" {arguments.output}"
    )


if __name__ == "__main__":
    main()
