"""The longest chain of operators, each of them shared by all cores, as a bound of the makespan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.planning.cutting.precedence import Precedence

MOST_OPERATORS = 1000
"""Of one network: beyond, chains are not looked at, whose sets of operators take the square of that
in memory."""
_SLACK = 1e-11
"""Relatively more than sums of so many numbers may be off in floating point."""


@dataclass(frozen=True)
class Demands:
    """What the operators of one mini-batch of a network need, in picoseconds, shape (operators,)
    but for ``busy``.

    ``busy[i, v]``: of a mean of resources, the i-th of several, which work on ``v`` takes at least.
    ``inbound`` and ``outbound`` are time of the main link: for weights and inputs, each counted for
    one operator that reads it, and for outputs. ``main[i]`` is the main link's weight in the i-th
    mean, and ``given[i]`` what a second of ``inbound`` adds to it: what comes in may be read over
    the main link meanwhile, so that only what exceeds the price of reading it over the cheaper link
    counts. ``least`` is what the shortest piece of an operator takes. ``held`` is the time of the
    main link that fills the fast memory.
    """

    busy: Floats
    main: Floats
    given: Floats
    inbound: Floats
    outbound: Floats
    least: Floats
    held: float


def chain_bound(precedence: Precedence, demands: Demands) -> int:
    """Picoseconds that one mini-batch takes at least, whatever the cuts, the order, the cores and
    the memories.

    Let ``head[u]`` be a time before which no piece of ``u`` starts, and ``end[v]`` one before which
    not all of ``v`` has ended. Operators that are after ``u`` and before ``v``
    (:class:`~loadmaster.planning.cutting.precedence.Precedence`) run between these two, all of
    them, so that ``end[v] >= head[u] + W``, where ``W`` is what they need of any mean of the
    machine's resources, each of which has only that time. Of what they read from main memory, no
    more than fills the fast memory can be there when ``u`` begins; if ``u`` is everything, nothing
    can. Further

    - ``head[v] >= end[u]`` where every piece of ``v`` needs all of ``u``;
    - ``head[v] >= head[u] + least[u]`` where every piece of ``v`` needs some of ``u``;
    - ``end[v] >= end[u] + least[v]`` where every element of ``u`` is needed by some piece of ``v``:
      one that needs what was made last.

    O(operators^2) memory, and O(operators^3) time in a matrix product.
    """
    count = len(demands.least)
    # The first row is a start that all come after, the last column an end that all come before.
    after = np.vstack([np.ones(count, dtype=np.bool_), precedence.after])
    before = np.hstack([precedence.before, np.ones((count, 1), dtype=np.bool_)])
    linked = (after.astype(np.float64) @ before) > 0
    between = _between(after, before, demands)
    head, end = np.zeros(count + 1), np.zeros(count + 1)
    for v in range(count):
        for u, need in precedence.needs[v].items():
            if need.some:
                head[v + 1] = max(head[v + 1], head[u + 1] + demands.least[u])
            if need.whole:
                head[v + 1] = max(head[v + 1], end[u])
        first = np.flatnonzero(linked[:, v])
        end[v] = max(head[v + 1] + demands.least[v], float((head[first] + between[first, v]).max()))
        for u, need in precedence.needs[v].items():
            if need.all_parts:
                end[v] = max(end[v], end[u] + demands.least[v])
    longest = max(float(end[:count].max(initial=0.0)), float((head + between[:, count]).max()))
    return int(longest * (1 - _SLACK))


def _between(after: Mask, before: Mask, demands: Demands) -> Floats:
    """Time that what is after one operator and before another needs, shape (operators + 1,
    operators + 1)."""
    sets = after.astype(np.float64)
    inbound = (sets * demands.inbound) @ before
    inbound[1:] = np.maximum(0.0, inbound[1:] - demands.held)
    # An output that is not awaited by the end of its operator may leave later.
    outbound = np.zeros_like(inbound)
    outbound[:, -1] = sets @ demands.outbound
    prices = zip(demands.busy, demands.main, demands.given, strict=True)
    means = [
        (sets * busy) @ before + main * outbound + given * inbound for busy, main, given in prices
    ]
    return np.asarray(np.maximum.reduce(means), dtype=np.float64)


def sums_by_operator(values: Floats, operator: Sequence[int] | Ints, count: int) -> Floats:
    """Sums of what each job needs over the jobs of every operator."""
    return np.bincount(
        np.asarray(operator, dtype=np.int64), weights=values, minlength=count
    ).astype(np.float64)
