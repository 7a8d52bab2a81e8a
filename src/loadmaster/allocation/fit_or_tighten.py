"""Place within limits and pack; where no addresses are found, place again within lower limits.

A placement counts bytes while addresses have gaps between them, so that what keeps a limit may not
be packed within it. AutoTM tightens by a factor around what offends, without bound on the rounds;
here limits fall by what sticks out, where it does, and by a little everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.errors import CapacityError, PlacementError

_EVERYWHERE, _MOST_EVERYWHERE = 0.002, 0.05
"""Share by which all limits are lowered in the first round, and at most; it doubles from round to
round."""
_LOCALLY = 2
"""Parts of the excess of addresses by which a limit is lowered."""
Placement = TypeVar("Placement")
Packing = TypeVar("Packing")


def fit_or_tighten(
    placed: Placement,
    place: Callable[[Ints], Placement],
    pack: Callable[[Placement, int], Packing | Ints],
    limits: Ints,
    least: Ints,
    *,
    rounds: int,
    alignment: int = 1,
) -> Packing | None:
    """Find a placement that can be packed.

    Parameters
    ----------
    placed
        The placement within ``limits``, bytes at every instant.
    place
        Finds another within lower limits, or raises `CapacityError` or `PlacementError`.
    pack
        Returns what came of a placement in a round, or the bytes by which addresses exceed what is
        allowed at every instant.
    least
        Bytes that are needed at every instant: no limit goes below.

    Returns
    -------
    Packing or None
        None if nothing was packed in so many ``rounds``, or nothing can be placed any more.
    """
    for number in range(rounds):
        found = pack(placed, number)
        if not isinstance(found, np.ndarray):
            return found
        if number + 1 == rounds:
            break
        local = np.where(found > 0, np.maximum(found // _LOCALLY, alignment), 0)
        share = min(_MOST_EVERYWHERE, _EVERYWHERE * 2**number)
        limits = np.maximum((limits * (1 - share)).astype(np.int64) - local, least)
        try:
            placed = place(limits)
        except (CapacityError, PlacementError):
            break
    return None
