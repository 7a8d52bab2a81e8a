"""Herald's mapper (HPCA 2021), as M3E compares with it: made for heterogeneous cores, blind to
bandwidth."""

from __future__ import annotations

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.mapping.group import queues_of
from loadmaster.mapping.group_search import MappingSearch, MappingStrategy


def run(search: MappingSearch) -> None:
    """Jobs as given, each where it would finish first."""
    group = search.group
    order = np.arange(group.jobs)
    search.offer(queues_of(earliest_finish(group.latency, order), order, group.cores))


def earliest_finish(latency: Floats, order: Ints) -> Ints:
    """Core of every job if, in this order, each goes where it ends first. O(jobs x cores)."""
    free_at = np.zeros(latency.shape[1])
    core = np.empty(len(latency), dtype=np.int64)
    for job in order.tolist():
        ends = free_at + latency[job]
        core[job] = ends.argmin()
        free_at[core[job]] = ends[core[job]]
    return core


STRATEGY = MappingStrategy(run, lambda group: 1)
