"""Addresses for placements whose copies overlap computation, found together with the time of the
copies.

Copies that begin early and end late fill the fast memory to the last byte, so that there is often
no packing of their stays. But only the *core* of a stay has to be where it is, from its first use
to its last: a copy in may begin later, and one out end earlier. So the stays are packed without
some of the time of their copies, and copies run when their addresses are free: once the copy out of
what was there before is complete. A local search then takes stays to other addresses, for a shorter
schedule (``src/native/placement/address_search.cpp``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.progress import Deadline
from loadmaster.placement.autotm.engine import PlacementSolution
from loadmaster.placement.decisions import TensorPlacement, blocks_of

_TRIMS = (0.25, 0.5, 1.0)
"""Shares of the time between core and copy that a packing may leave out, tried in turn."""
_WORK = 8 * 10**8
"""The most blocks and copies that the search over addresses looks at."""
_ATTEMPTS = 3000
"""Attempts of the search for every stay and kernel, unless they become too much work."""

Pack = Callable[[Ints, Ints, Ints], Ints | None]
"""Addresses for blocks of [lower, upper) and size, None if none were found."""


class Addressed(NamedTuple):
    """A placement, the address of every stay, then of every kernel's workspace, and the seconds;
    ``stopped`` if time was up."""

    placement: TensorPlacement
    offsets: Ints
    seconds: float
    stopped: bool


def place_at_addresses(
    found: PlacementSolution, capacity: int, pack: Pack, goal: float, deadline: Deadline
) -> Addressed | None:
    """Find addresses below ``capacity`` for the live ranges of a placement, and new times for its
    copies.

    The search ends at ``goal`` seconds, or once it has looked at as many blocks and copies as its
    effort allows. None if even cores were not packed. O(copies x stays) for each of its attempts,
    and much less where stays are packed closely.
    """
    search, paths = found.search, found.paths
    if search is None or paths is None:
        return None
    counted = search.arrays.problem.schedule(search.engines, paths)
    if not np.isfinite(counted.seconds):
        return None
    cores = np.stack([counted.stay_start, counted.stay_end], axis=1)
    lower, upper, size = blocks_of(search.sequence, search.timed(paths)[0])
    stays = slice(len(cores))
    # Limits count padded bytes, at the end of the memory too.
    size[stays] += -size[stays] % search.sequence.alignment
    for trim in _TRIMS:
        start, end = lower.copy(), upper.copy()
        start[stays] += np.ceil(trim * (cores[:, 0] - lower[stays])).astype(np.int64)
        end[stays] -= np.ceil(trim * (upper[stays] - cores[:, 1])).astype(np.int64)
        if (offsets := pack(start, end, size)) is not None:
            break
    else:
        return None
    attempts = _ATTEMPTS * len(offsets) * (len(offsets) + len(counted.tensor))
    searched = search.arrays.problem.search_addresses(
        search.engines,
        paths,
        np.ascontiguousarray(offsets),
        capacity=capacity,
        alignment=search.sequence.alignment,
        goal=goal,
        seed=search.seed,
        nodes=search.effort.share(min(_WORK, attempts)),
        seconds=deadline.left(),
    )
    placement, seconds = search.timed(paths, searched.offsets)
    return Addressed(placement, searched.offsets, seconds, searched.stopped)
