"""TelaMalloc: a heuristic that guides a constraint propagator and learns from it where to go back
to; the search is native.

After "TelaMalloc: Efficient On-Chip Memory Allocation for Production Machine Learning
Accelerators", ASPLOS 2023. What the published rules leave open is settled by what works best, see
``docs/allocation.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from loadmaster import _native
from loadmaster.allocation import native
from loadmaster.allocation.backtracking.trees import Trees
from loadmaster.allocation.native import NATIVE
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints


@dataclass(frozen=True)
class TelaMallocOptions:
    """Features of the search, each to be switched off on its own, and the budgets.

    Attributes
    ----------
    contention
        Of the instants where the skyline is lowest, go to the one with the most bytes waiting; else
        to the earliest.
    rules
        Candidates by lifetime, size and area; else by size alone.
    phases
        Groups of buffers that contend with each other, one after the other, the fullest first; else
        all at once.
    propagate
        Ask the propagator after every step; else notice only that a buffer itself does not fit.
    jump
        Major backtracks: go back to a placement to blame; else undo one placement after the other.
    prioritise
        Buffers that could not be placed, or that caused a major backtrack, are tried first from
        then on.
    unstick
        After ``patience`` backtracks without getting deeper, undo half of the placements; after
        some thousand steps, all of them.
    lowest
        Go where the skyline is lowest; else contention alone decides.
    steps
        Placements to try for each capacity.
    trees
        Chooses the target of a major backtrack, see `loadmaster.allocation.backtracking.learning`;
        None: the latest placement to blame.
    """

    contention: bool = True
    rules: bool = True
    phases: bool = True
    propagate: bool = True
    jump: bool = True
    prioritise: bool = True
    unstick: bool = True
    lowest: bool = True
    patience: int = 200
    steps: int = 20_000
    trees: Trees | None = None

    @property
    def features(self) -> _native.TelamallocFeatures:
        """The features as the native core takes them."""
        features = _native.TelamallocFeatures()
        for name in FEATURES:
            setattr(features, name, getattr(self, name))
        return features


FEATURES = tuple(field.name for field in fields(TelaMallocOptions) if field.type == "bool")
"""Names of the features that can be switched off."""


@dataclass
class Counts:
    """What a search did; an attempt begins with nothing placed."""

    steps: int = 0
    minor_backtracks: int = 0
    major_backtracks: int = 0
    attempts: int = 0


class TelaMalloc:
    """A search for a packing within a capacity."""

    def __init__(
        self, problem: Problem, capacity: int, options: TelaMallocOptions | None = None
    ) -> None:
        self.options = options or TelaMallocOptions()
        self.counts = Counts()
        self._problem, self._capacity = native.packing_problem(problem), capacity

    def run(self, seconds: float = math.inf) -> Ints | None:
        """Offsets, or None if steps, seconds or candidates ran out, which proves nothing.

        Raises
        ------
        KeyboardInterrupt
            If one came.
        """
        options = self.options
        trees = None if options.trees is None else _native.RegressionTrees(*options.trees)
        found = self._problem.telamalloc(
            self._capacity,
            steps=options.steps,
            features=options.features,
            patience=options.patience,
            seconds=seconds,
            trees=trees,
        )
        self.counts = Counts(**found.counters)
        if found.interrupted:
            raise KeyboardInterrupt
        return found.offsets if found.status == "feasible" else None


STRATEGY = NATIVE
