"""Many small pieces cost time to start, few large ones make whoever waits for them wait: what no
number of pieces can avoid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.planning.cutting.precedence import NOWHERE, Pairing, Precedence

MOST_OPERATORS = 1000
"""Of one network: beyond, chains are not looked at, whose sets of operators take the square of that
in memory."""


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


_SHARES = tuple(2.0 ** (-step / 2) for step in range(2, 25))
"""What waiting counts for, all together being 1: every one gives a bound."""
_SLACK = 1e-11
"""Relatively more than sums of so many numbers may be off in floating point."""


@dataclass(frozen=True)
class Pieces:
    """What pieces of the operators of one mini-batch of a network take, in picoseconds, shape
    (operators,).

    A piece with a share ``f`` of operator ``v`` takes ``f work[v] + overhead[v]`` at least on any
    core. ``single`` operators are never cut. ``extra[v]``: of a mean of the machine's resources,
    what every piece of ``v`` but one takes beside its share.
    """

    work: Floats
    overhead: Floats
    extra: Floats
    single: Mask


def piece_bound(paired: Sequence[Mapping[int, Pairing]], pieces: Pieces, least: float) -> int:
    """Picoseconds that a network takes at least, where ``least`` bounds the mean of the resources
    with one piece for every operator.

    Take a path of operators, each of which is paired with the one before it
    (:mod:`~loadmaster.planning.cutting.precedence`). Draw an element of the last one's result, and
    a partner of it in the result of the one before, and so on: of each result all elements are
    drawn equally often, or those of a share ``r`` of it. The piece that makes an element waits for
    the one of its partner, so that their times add up, for any draw, and so in the mean over all of
    them. Let ``v`` have ``p`` pieces, of which the one with the share ``f`` of its result is drawn
    with the probability ``q``. As ``q r`` is no more than ``f``, even if elements are made more
    than once, ``v`` adds ``overhead + sum(q f) work`` in the mean, which is at least ``overhead + r
    work / p``: as the ``q`` sum to 1, their squares sum to ``1 / p`` at least (Cauchy-Schwarz).

    Meanwhile resources need ``least`` and ``(p - 1) extra`` for every operator. So for any ``s``
    between 0 and 1 the time is at least ``(1 - s) (least + sum((p - 1) extra)) + s sum(overhead + r
    work / p)``, where of each operator of the path the ``p`` counts for which this is least. Of all
    paths the largest counts. O(shares x edges).
    """
    return max((int(_mean(paired, pieces, least, share)) for share in _SHARES), default=0)


def _mean(
    paired: Sequence[Mapping[int, Pairing]], pieces: Pieces, least: float, share: float
) -> float:
    """The bound for one share of waiting: ``least`` and the largest sum along a path."""
    # The best path to every operator of which all elements are drawn, or a range along some
    # dimension.
    until: list[dict[int, float]] = []
    for v, writers in enumerate(paired):
        own: dict[int, float] = {NOWHERE: 0.0}
        for u, pairing in writers.items():
            before = max(
                length
                for axis, length in until[u].items()
                if axis == NOWHERE or axis in pairing.free
            )
            own[pairing.axis] = max(
                own.get(pairing.axis, 0.0), before + _added(pieces, v, share, pairing.share)
            )
        own[NOWHERE] = max(own[NOWHERE], _added(pieces, v, share, 1.0))
        until.append(own)
    longest = max((length for own in until for length in own.values()), default=0.0)
    return (1 - _SLACK) * ((1 - share) * least + longest)


def _added(pieces: Pieces, v: int, share: float, drawn: float) -> float:
    """What an operator adds, in the number of pieces for which that is least: the whole number
    below or above the best."""
    price, gain = (1 - share) * pieces.extra[v], share * pieces.work[v] * drawn
    if pieces.single[v] or gain <= 0:
        return float(gain + share * pieces.overhead[v])
    if price <= 1e-12 * gain:
        return float(share * pieces.overhead[v])
    best = max(1, math.isqrt(int(gain / price)))
    return float(
        min((count - 1) * price + gain / count for count in (best, best + 1))
        + share * pieces.overhead[v]
    )
