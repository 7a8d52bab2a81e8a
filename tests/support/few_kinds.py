"""A mapping search with few samples left, of jobs of few kinds."""

import numpy as np

from loadmaster.mapping.bounds.group_bounds import group_bound
from loadmaster.mapping.group import Group, queues_of
from loadmaster.mapping.group_search import Search


def search_of_few_kinds():
    """Two hundred samples are left for 24 jobs of six kinds on six cores, all on the first core."""
    random = np.random.default_rng(0)
    kinds = random.integers(0, 6, 24)
    latency = random.lognormal(0.0, 1.0, (6, 2))[kinds]
    demand = random.uniform(0.1, 0.6, (6, 2))[kinds]
    group = Group(np.repeat(latency, 3, axis=1), np.repeat(demand, 3, axis=1))
    search = Search(group, group_bound(group), samples=60_000)
    search.offer(queues_of(np.zeros(24, dtype=np.int64), np.arange(24), 6))
    search.taken = 59_800
    return search
