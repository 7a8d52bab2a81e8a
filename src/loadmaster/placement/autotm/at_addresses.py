"""Addresses for placements whose copies overlap computation, found together with the times of the
copies.

Copies that begin early and end late fill the fast memory to the last byte, so their stays often
cannot be packed. But only the *core* of a stay, from its first use to its last, is fixed: a copy in
may begin later, and a copy out may end earlier. So stays are packed with part of their copy times
trimmed, and a copy runs once its addresses are free: when the copies out of the previous blocks
there are complete. A local search then moves stays to other addresses for a shorter schedule
(``src/native/placement/address_search.cpp``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.progress import Deadline, ends_at_interrupt
from loadmaster.placement.autotm.engine import PlacementSolution
from loadmaster.placement.decisions import blocks_of

_TRIMS = (0.25, 0.5, 1.0)
"""Shares of the copy times that a packing may trim, tried in turn."""
_WORK = 8 * 10**8
"""Most blocks and copies that the address search looks at."""
_ATTEMPTS = 3000
"""Attempts of the address search per stay and kernel, within that budget."""

Pack = Callable[[Ints, Ints, Ints], Ints | None]
"""Addresses for blocks of [lower, upper) and size, None if none were found."""


def place_at_addresses(
    found: PlacementSolution, capacity: int, pack: Pack, goal: float, deadline: Deadline
) -> tuple[PlacementSolution, Ints] | None:
    """Find addresses below ``capacity`` for the stays of a placement, then of every kernel's
    workspace, and new times of its copies.

    The search ends at ``goal`` seconds, or when its budget is spent. None if even the cores could
    not be packed. O(copies x stays) per attempt, and much less where stays are packed densely.
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
    with ends_at_interrupt(deadline) as left:
        searched = search.arrays.problem.search_addresses(
            search.engines,
            paths,
            np.ascontiguousarray(offsets),
            capacity=capacity,
            alignment=search.sequence.alignment,
            goal=goal,
            seed=search.seed,
            nodes=search.effort.share(min(_WORK, attempts)),
            seconds=left.left(),
        )
    placement, seconds = search.timed(paths, searched.offsets)
    moved = replace(found, placement=placement, seconds=seconds, interrupted=searched.stopped)
    return moved, searched.offsets
