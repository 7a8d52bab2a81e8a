"""Many small pieces cost time to start, few large ones make whoever waits for them wait: what no
number of pieces can avoid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadmaster.core.arrays import Floats, Mask
from loadmaster.planning.cutting.pairing import NOWHERE, Pairing

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
    (:mod:`~loadmaster.planning.cutting.pairing`). Draw an element of the last one's result, and a
    partner of it in the result of the one before, and so on: of each result all elements are drawn
    equally often, or those of a share ``r`` of it. The piece that makes an element waits for the
    one of its partner, so that their times add up, for any draw, and so in the mean over all of
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
