"""Auto: manual mappings, linear programs and their rounding, annealing; stopped as soon as a bound is met."""

from __future__ import annotations

import numpy as np

from loadmaster.mapping.group import Group, Ints, Queues, queues_of
from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies import ai_mt, annealing, herald

_NODES = 60
"""Programs solved to tighten the bound, about a millisecond each."""


def run(search: Search) -> None:
    """Everything that costs one sample first; then prove what can be proven, and anneal from the best of it."""
    group = search.group
    mixed, falling = ai_mt.interleaved(group), herald.longest_first(group)
    given = np.arange(group.jobs)
    starts = [
        (herald.earliest_finish(group.latency, given), given),
        (ai_mt.balanced(group, mixed), mixed),
        (herald.earliest_finish(group.latency, falling), mixed),
        (rounded(search), mixed),
    ]
    if group.energy is not None and group.weights[1]:
        starts.append((np.where(group.allowed, group.energy, np.inf).argmin(axis=1), mixed))
    tried = [queues_of(*start, group.cores) for start in starts]
    if search.warm_start is not None:
        tried.append(group.decode(search.warm_start[0][None, :], search.warm_start[1][None, :]))
    scored: list[tuple[float, int, Queues]] = []
    for queues in tried:
        scored.append((search.offer(queues), len(scored), queues))
        if search.done:
            return
    if group.weights[0]:
        search.tighten(_NODES)
        leaf = queues_of(rounded(search), mixed, group.cores)
        scored.append((search.offer(leaf), len(scored), leaf))
    if not search.done:
        annealing.anneal(search, [queues for _, _, queues in sorted(scored)[:4]])


def rounded(search: Search) -> Ints:
    """Every job on one of the cores that the linear program finds cheapest, the least loaded of them, longest jobs first."""
    group = search.group
    price = search.bound.preference
    near = price <= price.min(axis=1, keepdims=True) * (1 + 1e-3)
    return herald.earliest_finish(np.where(near & group.allowed, group.latency, np.inf), herald.longest_first(group))


def default_samples(group: Group) -> int:
    """As for annealing."""
    return annealing.default_samples(group)


STRATEGY = Strategy("auto", run, default_samples)
