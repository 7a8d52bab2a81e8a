"""Auto: manual mappings, programs and their rounding, MAGMA, annealing; stopped as soon as a bound
is met."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.mapping.group import Group, Queues, queues_of
from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies import ai_mt, annealing, herald, magma
from loadmaster.mapping.strategies.paced import paced
from loadmaster.mapping.strategies.whole_jobs import whole_jobs

_EVOLVED = 0.1
"""Share of the samples that MAGMA takes."""
_STARTS = 3
"""How many of the mappings found so far annealing starts from, beside the integer program's."""
_FIRST = 2 / 3
"""Share of the budget after which what is left goes on from what the last bound says, if there is
enough to gain."""
_PROOF = 0.4
"""Share of the time left that goes into that bound."""
_HOT, _WARM = 2e-3, 5e-5
"""Temperatures at which annealing starts from it: the cores are good, and their order is not."""
_NEAR = 2e-3
"""Share of the makespan that the integer program, and going on, are not worth."""
_PROGRAM = 0.2
"""Share of the time left that the integer program may take."""
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
        search.tighten()
        for core in (rounded(search), *search.bound.cores):
            leaf = queues_of(core, mixed, group.cores)
            scored.append((search.offer(leaf), leaf))
    if not search.done:
        evolved = magma.evolve(search, magma.DEFAULTS, int(_EVOLVED * search.expected))
        scored.append((search.value(evolved), evolved))
    begins = [queues for _, queues in sorted(scored, key=itemgetter(0))[:_STARTS]]
    if group.weights[0]:
        level_demand(search)
        begins = [*_whole(search), *begins]
    if search.done:
        return
    annealing.anneal(search, begins, until=_FIRST if group.weights[0] else 1.0)
    if not search.done:
        go_on(search)


def go_on(search: Search) -> None:
    """Anneal from the solution of the last bound, which knows what every core can hold; without
    one, from the best mapping."""
    search.prove(search.deadline.part(_PROOF))
    if search.score > search.bound.score * (1 + _NEAR):
        begins = _offered(search, *search.bound.cores)
        annealing.anneal(search, begins, hot=_HOT, warm=_WARM)


def _whole(search: Search) -> list[Queues]:
    """The mapping of the integer program, if there is enough to gain: far from done, its order is
    made for annealing to mend."""
    if search.done or search.score <= search.bound.score * (1 + _NEAR):
        return []
    core = whole_jobs(search.group, search.score, search.deadline.part(_PROGRAM))
    return [] if core is None else _offered(search, core)


def _offered(search: Search, *cores: Ints) -> list[Queues]:
    """Offer these cores of every job in paced orders."""
    found = [paced(search.group, core) for core in cores]
    for queues in found:
        search.offer(queues)
    return found


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
        fits = ends <= room
        core[job] = (
            np.where(fits, price[job] * (1 + _TIE * load / room), np.inf).argmin()
            if fits.any()
            else ends.argmin()
        )
        load[core[job]] = ends[core[job]]
    return core


def default_samples(group: Group) -> int:
    """As many as annealing takes until :data:`_FIRST`."""
    return round(annealing.default_samples(group) / _FIRST)


STRATEGY = Strategy(run, default_samples)
