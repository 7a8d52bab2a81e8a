"""Auto: manual mappings, rounded linear programs, then annealing; stops when the bound is met."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.mapping.group import Queues, queues_of
from loadmaster.mapping.group_search import MappingSearch, MappingStrategy
from loadmaster.mapping.strategies import ai_mt, annealing, herald
from loadmaster.mapping.strategies.paced import paced

_STARTS = 3
"""Number of the best mappings so far from which annealing starts."""
_PROOF = 0.2
"""Share of the time left that goes into a better bound."""
_ROOM = 1.01
"""Time budget of a core in rounding, relative to the bound."""
_SHORTER, _ROOMS = 0.7, 10
"""First factor by which that budget shrinks, and number of budgets that are tried."""
_LEAST = 1e-300
"""Least time budget of a core in seconds, so that the used share of it is defined."""
_TIE = 1e-3
"""Price difference that is made up for by an idle core."""


def run(search: MappingSearch) -> None:
    """Try all mappings that cost one sample, tighten the bound, then anneal from the best
    mappings."""
    group = search.group
    mixed = ai_mt.interleaved(group)
    falling = np.argsort(-group.latency.min(axis=1), kind="stable")
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
    if (genome := search.warm_start) is not None:
        tried.append(group.decode(genome[0][None], genome[1][None]))
    scored: list[tuple[float, Queues]] = []
    for queues in tried:
        scored.append((search.offer(queues), queues))
        if search.done:
            return
    if group.weights[0]:
        search.tighten(search.deadline.part(_PROOF))
        cores = [rounded(search)]
        if search.bound.core is not None:
            cores.append(search.bound.core)
        for core in cores:
            if search.done:
                return
            leaf = paced(group, core)
            scored.append((search.offer(leaf), leaf))
    begins = [queues for _, queues in sorted(scored, key=itemgetter(0))[:_STARTS]]
    if group.weights[0]:
        level_demand(search)
    annealing.anneal(search, begins)


def level_demand(search: MappingSearch) -> None:
    """Offer rounded mappings in paced orders with shrinking time budgets of the cores, while the
    score does not get worse.

    If bandwidth limits, some cores of a rounded program end long before others, and the last jobs
    leave bandwidth idle; smaller budgets level the cores.
    """
    least, room, shorter = np.inf, _ROOM, 1.0
    for _ in range(_ROOMS):
        if search.done:
            return
        score = search.offer(paced(search.group, rounded(search, room * shorter)))
        if score <= least:
            least = score
            room = room * shorter
            shorter = min(shorter, _SHORTER)
        else:
            shorter **= 0.5


def rounded(search: MappingSearch, room: float = _ROOM) -> Ints:
    """Round the linear program: each job goes to its cheapest core that has time left; jobs with
    the largest regret come first.

    ``room`` is the time budget of a core, relative to the bound.
    """
    group = search.group
    price = np.where(group.allowed, search.bound.preference, np.inf)
    second = np.partition(price, 1, axis=1)[:, 1] if group.cores > 1 else price[:, 0]
    loss = np.where(
        np.isfinite(second), second, price.max(initial=0.0, where=np.isfinite(price)) * group.jobs
    ) - price.min(axis=1)
    # Equal regrets: longest job first.
    order = np.lexsort((-group.latency.min(axis=1), -loss))
    # If all jobs take no time, budgets are 0 and not needed.
    room = max(room * search.bound.makespan, _LEAST)
    load = np.zeros(group.cores)
    core = np.empty(group.jobs, dtype=np.int64)
    for job in order.tolist():
        ends = load + group.latency[job]
        costs = np.where(ends <= room, price[job] * (1 + _TIE * load / room), np.inf)
        core[job] = (costs if costs.min() < np.inf else ends).argmin()
        load[core[job]] = ends[core[job]]
    return core


STRATEGY = MappingStrategy(run, annealing.default_samples)
