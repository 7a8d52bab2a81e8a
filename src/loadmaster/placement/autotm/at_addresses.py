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

from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.deadline import Deadline
from loadmaster.core.effort import Effort
from loadmaster.placement.autotm.overlapping import copy_engines, paths_of, scheduled
from loadmaster.placement.autotm.sequence_arrays import (
    SequenceArrays,
    TensorPaths,
    sequence_arrays,
    spans,
)
from loadmaster.placement.decisions import TensorPlacement
from loadmaster.placement.packed import Placed, blocks_of
from loadmaster.placement.sequence import KernelSequence

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
    sequence: KernelSequence,
    placement: TensorPlacement,
    limits: Ints,
    capacity: int,
    pack: Pack,
    *,
    goal: float,
    deadline: Deadline,
    seed: int,
    effort: Effort = Effort.NORMAL,
) -> Addressed | None:
    """Find addresses below ``capacity`` for the live ranges of ``placement``, which keeps
    ``limits``, and new times for its copies.

    The search ends at ``goal`` seconds, or once it has looked at as many blocks and copies as
    ``effort`` allows. None if even cores were not packed. O(copies x stays) for each of its
    attempts, and much less where stays are packed closely.
    """
    arrays, engines = (
        sequence_arrays(sequence, np.minimum(limits, WHOLE_LIMIT)),
        copy_engines(sequence),
    )
    if not arrays.kernel_count:
        return None
    paths = paths_of(sequence, arrays, placement)
    counted = arrays.problem.schedule_copies(engines, paths)
    if not np.isfinite(counted.seconds):
        return None
    offsets = _packed(sequence, arrays, paths, scheduled(arrays, paths, counted), pack)
    if offsets is None:
        return None
    paths = TensorPaths(paths.fast, paths.stays, paths.tail)
    searched = arrays.problem.search_addresses(
        engines,
        paths,
        offsets,
        capacity=capacity,
        alignment=sequence.alignment,
        goal=goal,
        seed=seed,
        nodes=effort.share(
            min(_WORK, _ATTEMPTS * len(offsets) * (len(offsets) + len(counted.tensor)))
        ),
        seconds=deadline.left(),
    )
    timed = arrays.problem.schedule_at(engines, paths, searched.offsets)
    return Addressed(
        scheduled(arrays, paths, timed), searched.offsets, timed.seconds, searched.stopped
    )


def _packed(
    sequence: KernelSequence,
    arrays: SequenceArrays,
    paths: TensorPaths,
    wanted: TensorPlacement,
    pack: Pack,
) -> Ints | None:
    """Addresses of stays and workspaces, with as much of the time of copies as was packed."""
    cores = np.array(
        [span for t in range(arrays.tensor_count) for span in spans(arrays, paths, t)],
        dtype=np.int64,
    ).reshape(-1, 2)
    lower, upper, size = blocks_of(Placed(sequence, wanted))
    stays = slice(len(cores))
    # Limits count padded bytes, at the end of the memory too.
    size[stays] += -size[stays] % sequence.alignment
    for trim in _TRIMS:
        start, end = lower.copy(), upper.copy()
        start[stays] += np.ceil(trim * (cores[:, 0] - lower[stays])).astype(np.int64)
        end[stays] -= np.ceil(trim * (upper[stays] - cores[:, 1])).astype(np.int64)
        offsets = pack(start, end, size)
        if offsets is not None:
            return np.ascontiguousarray(offsets)
    return None
