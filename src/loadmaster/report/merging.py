"""Merges shapes of charts, so that browsers can redraw them while panning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from operator import attrgetter

from loadmaster.report.view import MemoryMap, Shape

_BISECTIONS = 32
"""Steps of the bisection: a precision of 2^-32 of the time axis."""
_BANDS = 64
"""Number of bands of addresses within which regions of a memory map are merged."""
Lane = Callable[[Shape], float]
lane_of: Lane = attrgetter("low")
"""Return the lane of a shape, its lower end."""


def neighbours(shapes: Sequence[Shape], limit: int, lane: Lane = lane_of) -> list[Sequence[Shape]]:
    """Sort shapes by lane and start, and merge neighbours on a lane into at most ``limit`` groups.

    Minimises the duration of the longest merged group by bisection, O(shapes x 32). Lanes are not
    merged: with more than ``limit`` lanes, each is one group.
    """
    shapes = sorted(shapes, key=lambda shape: (lane(shape), shape.start))
    if len(shapes) <= limit:
        return [[shape] for shape in shapes]
    lanes = list(map(lane, shapes))
    low = 0.0
    high = max(shape.end for shape in shapes) - min(shape.start for shape in shapes)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        # Of too many groups the rest need no look.
        if len(list(islice(_group_starts(shapes, lanes, middle), limit + 1))) <= limit:
            high = middle
        else:
            low = middle
    bounds = [*_group_starts(shapes, lanes, high), len(shapes)]
    return [shapes[first:last] for first, last in pairwise(bounds)]


def _group_starts(shapes: Sequence[Shape], lanes: Sequence[float], longest: float) -> Iterator[int]:
    """Yield the index of the first shape of each group, if merged groups last at most ``longest``.
    O(shapes)."""
    current, start, end = -1.0, 0.0, 0.0
    for at, (lane, shape) in enumerate(zip(lanes, shapes, strict=True)):
        end = max(end, shape.end)
        if lane != current or end - start > longest:
            yield at
            current, start, end = lane, shape.start, shape.end


def band_of(chart: MemoryMap) -> Lane:
    """Return a function that gives the band of addresses in which a region begins."""
    return lambda shape: _BANDS * shape.low // max(1, chart.top)


def around(group: Sequence[Shape]) -> Shape:
    """Return the bounding rectangle of shapes, with the colour and tooltip of the longest."""
    longest = max(group, key=lambda shape: shape.end - shape.start)
    start = min(shape.start for shape in group)
    end = max(shape.end for shape in group)
    low = min(shape.low for shape in group)
    return replace(longest, start=start, end=end, low=low, high=max(shape.high for shape in group))
