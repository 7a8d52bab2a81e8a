"""Place within limits and pack; if no addresses are found, place again within lower limits.

A placement counts bytes, but a packing may have gaps, so a placement within a limit may not be
packable. AutoTM lowers limits by a factor near the failure, in any number of rounds. Here limits
fall by the excess of addresses where they exceed, and by a small share everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.errors import CapacityError, PlacementError

_EVERYWHERE, _MOST_EVERYWHERE = 0.002, 0.05
"""Share by which all limits are lowered in the first round, and its maximum; it doubles every
round."""
_LOCALLY = 2
"""Divisor of the excess of addresses by which a limit is lowered."""
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
        Returns a placement within lower limits, or raises `CapacityError` or `PlacementError`.
    pack
        Returns the packing of a placement, or the bytes by which addresses exceed the capacity at
        every instant.
    least
        Bytes needed at every instant, below which no limit is lowered.

    Returns
    -------
    Packing or None
        None if nothing was packed within ``rounds``, or no placement is left.
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
