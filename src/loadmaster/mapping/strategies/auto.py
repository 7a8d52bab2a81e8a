"""Auto: manual mappings, programs and their rounding, annealing; stopped as soon as a bound is
met."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.mapping.group import Queues, queues_of
from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies import ai_mt, annealing, herald
from loadmaster.mapping.strategies.paced import paced

_STARTS = 3
"""How many of the mappings found so far annealing starts from."""
_PROOF = 0.2
"""Share of the time left that goes into a better bound."""
_ROOM = 1.01
"""Time that rounding gives a core, relative to the bound."""
_SHORTER, _ROOMS = 0.7, 10
"""The first factor by which that time is made less, and how many times are tried."""
_LEAST = 1e-300
"""Seconds that a core has at least, because what is used of them is a ratio."""
_TIE = 1e-3
"""Difference in price that an idle core makes up for."""


def run(search: Search) -> None:
    """Everything that costs one sample first; then prove what can be proven, and anneal from the
    best of it."""
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
    if (genome := search.warm_start) is not None:
        tried.append(group.decode(genome[0][None, :], genome[1][None, :]))
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
            leaf = paced(group, core)
            scored.append((search.offer(leaf), leaf))
    begins = [queues for _, queues in sorted(scored, key=itemgetter(0))[:_STARTS]]
    if group.weights[0]:
        level_demand(search)
    annealing.anneal(search, begins)


def level_demand(search: Search) -> None:
    """Offer rounded mappings in paced orders, which leave the cores less and less time, as long as
    that is no worse.

    Where bandwidth limits, the program's cores are done before it, some long before others, and
    what runs last leaves bandwidth idle.
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


def rounded(search: Search, room: float = _ROOM) -> Ints:
    """Every job on the core that the linear program finds cheapest and that still has time for it;
    those first that have most to lose.

    ``room`` is the time that a core has, relative to the bound.
    """
    group = search.group
    price = np.where(group.allowed, search.bound.preference, np.inf)
    second = np.partition(price, 1, axis=1)[:, 1] if group.cores > 1 else price[:, 0]
    loss = np.where(
        np.isfinite(second), second, price.max(initial=0.0, where=np.isfinite(price)) * group.jobs
    ) - price.min(axis=1)
    # Equal losses: longest first.
    order = np.lexsort((-group.latency.min(axis=1), -loss))
    # Where no job takes any time there is no room at all, and none is needed.
    room = max(room * search.bound.makespan, _LEAST)
    load = np.zeros(group.cores)
    core = np.empty(group.jobs, dtype=np.int64)
    for job in order.tolist():
        ends = load + group.latency[job]
        costs = np.where(ends <= room, price[job] * (1 + _TIE * load / room), np.inf)
        core[job] = (costs if costs.min() < np.inf else ends).argmin()
        load[core[job]] = ends[core[job]]
    return core


STRATEGY = Strategy(run, annealing.default_samples)
