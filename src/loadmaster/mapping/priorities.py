"""Priorities of jobs that wait for others: upward ranks, and random changes of priorities for local
search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from loadmaster.core.arrays import Floats

_Number = TypeVar("_Number", int, float)


def upward_rank(after: Sequence[Sequence[int]], cost: Sequence[_Number]) -> list[_Number]:
    """Cost of the longest chain of jobs that each job begins, itself included (HEFT); exact for
    integers.

    ``after`` has for every job the indices of the jobs that it waits for, all smaller than its own.
    O(jobs + dependencies).
    """
    rank = list(cost)
    above = [0 * c for c in cost]
    for index in range(len(rank) - 1, -1, -1):
        # All successors have larger indices: their ranks have been passed up already.
        rank[index] += above[index]
        for before in after[index]:
            above[before] = max(above[before], rank[index])
    return rank


def perturbed(priority: Floats, generator: np.random.Generator) -> Floats:
    """Change few priorities much or many a little."""
    share, strength = generator.choice([0.02, 0.1, 0.5]), generator.choice([0.03, 0.2, 1.0])
    chosen = generator.random(len(priority)) < share
    return np.asarray(
        priority * np.exp(strength * generator.standard_normal(len(priority)) * chosen)
    )
