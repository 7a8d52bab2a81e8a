"""AI-MT's mapper (ISCA 2020), a baseline of M3E: made for homogeneous cores, alternates
memory-bound and compute-bound jobs."""

from __future__ import annotations

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.mapping.group import Group, queues_of
from loadmaster.mapping.group_search import MappingSearch, MappingStrategy
from loadmaster.mapping.strategies.herald import earliest_finish


def run(search: MappingSearch) -> None:
    """Balance the load as if cores were equal, with jobs of high and low demand in turn."""
    group = search.group
    order = interleaved(group)
    search.offer(queues_of(balanced(group, order), order, group.cores))


def interleaved(group: Group) -> Ints:
    """Jobs ordered by demand: the largest, the smallest, the second largest, and so on."""
    falling = np.argsort(-_mean(group, group.usable_demand), kind="stable")
    half = -(-len(falling) // 2)
    order = np.empty_like(falling)
    order[0::2] = falling[:half]
    order[1::2] = falling[half:][::-1]
    return order


def _mean(group: Group, figures: Floats) -> Floats:
    """Mean of a figure over the cores that can run each job, shape (jobs,)."""
    return np.asarray(figures.sum(axis=1) / group.allowed.sum(axis=1))


def balanced(group: Group, order: Ints) -> Ints:
    """Put each job on the least loaded core that can run it, counting the same time on every
    core."""
    typical = np.where(group.allowed, _mean(group, group.busy)[:, None], np.inf)
    return earliest_finish(typical, order)


STRATEGY = MappingStrategy(run, lambda group: 1)
