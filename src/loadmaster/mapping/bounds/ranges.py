"""Branch and bound over the end of the virtual clock, and over how many jobs of a kind a kind of
core holds.

How a mapping packs its cores depends on how long they run: the program of ``contents`` is strong
where the clock's end is known within a few percent. So the range is halved, the least bound first;
where it is narrow, it is split on the number of jobs, of one kind on one kind of core, that is not
whole in the program's solution.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np

from loadmaster.core.progress import NO_DEADLINE, Deadline
from loadmaster.mapping.bounds.configurations import ConfigurationBound
from loadmaster.mapping.bounds.contents import Contents, Range, RangeBound
from loadmaster.mapping.bounds.job_kinds import JobKinds
from loadmaster.mapping.group import Group, Queues

_NEAR = 1e-3
"""Share of the makespan that is not worth proving."""
_CELLS = 200
"""Kinds of jobs times kinds of cores up to which the program is small enough."""
MOST_WORK = 60_000
"""Programs solved at most, times their cells: two seconds or less."""
_RISE, _PATIENCE = 0.02, 60
"""Share of the gap that the bound must rise by within so many ranges for the search to go on."""
_NARROW, _NARROWEST = 0.02, 5e-4
"""Widths of the range below which jobs are split, and clocks no longer."""
_PROMISING = 3
"""Ranges whose solutions are rounded."""
_WHOLE = 1e-5
"""Distance from whole numbers that counts as none."""


def range_bound(
    group: Group,
    queues: Queues,
    known: float,
    deadline: Deadline = NO_DEADLINE,
    most: int = MOST_WORK,
) -> ConfigurationBound:
    """Bound the makespan, by at least ``known``; ``queues`` is a known mapping, beyond whose
    makespan there is nothing to prove.

    ``most`` is how many programs are solved, times their cells.

    The bound that was known, and no cores, where the group is too large, some jobs want no
    bandwidth, or the mapping is near enough to it.
    """
    makespan = float(group.makespans(queues)[0])
    if not group.every_job_uses_bandwidth or not known < makespan * (1 - _NEAR):
        return ConfigurationBound(known)
    kinds = JobKinds(group, makespan)
    if not kinds.usable or kinds.latency.size > min(_CELLS, most):
        return ConfigurationBound(known)
    columns = Contents(kinds, queues)
    root = RangeBound(Range(), known / makespan, np.zeros(kinds.latency.shape), 0)
    leaves, made, work = [(root.makespan, 0, root)], 0, 0
    reached, risen = root.makespan, 0
    while (
        work < min(most, MOST_WORK)
        and made - risen < _PATIENCE
        and leaves[0][0] < 1 - _NEAR
        and not deadline.passed()
    ):
        least, _, leaf = leaves[0]
        if least - reached > _RISE * (1 - reached):
            reached, risen = least, made
        parts = _split(leaf, kinds)
        if not parts:
            break
        heapq.heappop(leaves)
        for within in parts:
            bound = columns.bound(within, least, 1 - _NEAR)
            made, work = made + 1, work + bound.rounds * kinds.latency.size
            heapq.heappush(leaves, (bound.makespan, -made, bound))
    cores = tuple(
        kinds.rounded(leaf.held, leaf.within.high)
        for _, _, leaf in heapq.nsmallest(_PROMISING, leaves)
        if leaf.held.any()
    )
    return ConfigurationBound(max(known, min(makespan, leaves[0][0] * makespan)), cores)


def _split(leaf: RangeBound, kinds: JobKinds) -> tuple[Range, ...]:
    """Two ranges that together are the leaf's; none where nothing is left to split on."""
    within, width = leaf.within, leaf.within.high - leaf.within.low
    cell = _broken(leaf, kinds)
    if width > (_NARROWEST if cell is None else _NARROW):
        middle = (within.low + within.high) / 2
        return replace(within, high=middle), replace(within, low=middle)
    if cell is None:
        return ()
    low, high = within.limits.get(cell, (0, int(kinds.count[cell[0]])))
    whole = int(np.floor(leaf.held[cell]))
    return tuple(
        replace(within, limits={**within.limits, cell: ends})
        for ends in ((low, whole), (whole + 1, high))
    )


def _broken(leaf: RangeBound, kinds: JobKinds) -> tuple[int, int] | None:
    """The kind of job and of core whose number is farthest from whole, weighed by the time that it
    takes."""
    held = leaf.held
    away = np.abs(held - np.rint(held))
    away[away <= _WHOLE] = 0.0
    low = np.zeros_like(held)
    high = np.tile(kinds.count[:, None], held.shape[1])
    for cell, limits in leaf.within.limits.items():
        low[cell], high[cell] = limits
    # The program may hold more jobs than there are, or, where no mapping is in the range, fewer.
    away[(held <= low) | (held >= high)] = 0.0
    possible = np.isfinite(kinds.latency)
    weight = away * np.where(possible, kinds.latency, 0.0) * np.maximum(1.0, kinds.demand)
    return divmod(int(weight.argmax()), weight.shape[1]) if weight.any() else None
