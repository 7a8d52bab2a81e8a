"""When a tensor's copies can take place: after its last write, and before the use that needs them.

An aggregated program of copies knows how many bytes an engine moves at each kernel, but not whose.
What holds for all copies whose windows lie within an interval holds for their sum: an engine must
move all those bytes within it. Such rows are added where a solution breaks them (as cuts for
preemptive scheduling with release times and deadlines; Horn, 1974).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.placement.autotm.sequence_arrays import LiveRange, SequenceArrays

_LONGEST = 512
"""Kernels in the longest interval that is looked at."""
_APART = 2
"""Intervals of which both ends are no further apart than this say nearly the same."""
_LOOKED_AT = 20_000
"""Intervals looked at, those that a solution breaks most first."""
_LEAST_MISSING = 1e-4
"""Bytes, in units of the program, that must be missing for an interval to be worth a row."""


@dataclass(frozen=True)
class CopyWindows:
    """Positions from which a tensor's copies may start, shape (uses,); -1: since an earlier step,
    if at all."""

    arrays: SequenceArrays

    @cached_property
    def since(self) -> Ints:
        """Of a copy out after each use: the position after the last write up to that use. Inputs
        are dirty from the start."""
        arrays = self.arrays
        written = np.where(arrays.writes > 0, arrays.kernel + 1, -1)
        supplied = (arrays.live_range == LiveRange.INPUT)[arrays.tensor]
        base = arrays.tensor * (arrays.kernel_count + 2)
        last: Ints = (
            np.maximum.accumulate(base + np.where(supplied, np.maximum(written, 0), written)) - base
        )
        return np.maximum(last, -1)

    @cached_property
    def before(self) -> Ints:
        """Of a copy in before each use: the position after the last write before it."""
        arrays = self.arrays
        begins = arrays.first[:-1][np.diff(arrays.first) > 0]
        before = np.append(-1, self.since[:-1]) if len(self.since) else self.since
        before[begins] = np.where(
            arrays.live_range[arrays.tensor[begins]] == LiveRange.INPUT, 0, -1
        )
        return before


def broken_intervals(
    begin: Ints, end: Ints, bytes_: Floats, moved: Floats, blocking: Floats, most: int
) -> list[tuple[int, int]]:
    """Find intervals of positions in which fewer bytes are copied than copies whose windows lie
    within need; those most short first.

    ``moved`` are bytes that an engine moves while each kernel runs, ``blocking`` those copied at
    positions. O(kernels x longest interval).
    """
    positions, longest = len(moved) + 1, min(len(moved), _LONGEST)
    within = np.zeros((positions, longest + 1))
    short = end - begin <= longest
    np.add.at(within, (begin[short], (end - begin)[short]), bytes_[short])
    np.cumsum(within, axis=1, out=within)
    for first in range(positions - 2, -1, -1):
        within[first, 1:] += within[first + 1, :-1]
    starts = np.arange(positions)
    ends = np.minimum(starts[:, None] + np.arange(longest + 1), positions - 1)
    total, blocked = np.append(0.0, moved.cumsum()), np.append(0.0, blocking.cumsum())
    last = np.minimum(ends + 1, len(blocking))
    missing = within - (
        total[ends]
        - total[starts, None]
        + blocked[last]
        - blocked[np.minimum(starts, len(blocking)), None]
    )
    return _distinct(missing, ends, most)


def _distinct(missing: Floats, ends: Ints, most: int) -> list[tuple[int, int]]:
    flat = missing.reshape(-1)
    worst = np.argpartition(-flat, min(_LOOKED_AT, len(flat) - 1))[:_LOOKED_AT]
    worst = worst[flat[worst] > _LEAST_MISSING]
    worst = worst[np.lexsort((worst, -flat[worst]))]
    found: list[tuple[int, int]] = []
    for row, column in zip(*np.unravel_index(worst, missing.shape), strict=True):
        interval = int(row), int(ends[row, column])
        if all(
            abs(interval[0] - other[0]) > _APART or abs(interval[1] - other[1]) > _APART
            for other in found
        ):
            found.append(interval)
            if len(found) == most:
                break
    return found
