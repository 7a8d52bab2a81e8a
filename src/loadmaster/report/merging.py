"""Merges shapes of charts, so that browsers can redraw them while panning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from operator import attrgetter

from loadmaster.report.view import MemoryMap, Shape

_BISECTIONS = 14
"""Steps of the bisection between 2^-32 of the time axis and all of it, by ratios: the longest group
lasts at most 0.2 % longer than it has to."""
_BANDS = 64
"""Number of bands of addresses within which regions of a memory map are merged."""
Lane = Callable[[Shape], float]
lane_of: Lane = attrgetter("low")
"""Return the lane of a shape, its lower end."""


def neighbours(shapes: Sequence[Shape], limit: int, lane: Lane = lane_of) -> list[Sequence[Shape]]:
    """Sort shapes by lane and start, and merge neighbours on a lane into at most ``limit`` groups.

    Minimises the duration of the longest merged group by bisection, O(shapes x 14). Lanes are not
    merged: with more than ``limit`` lanes, each is one group.
    """
    shapes = sorted(shapes, key=lambda shape: (lane(shape), shape.start))
    if len(shapes) <= limit:
        return [[shape] for shape in shapes]
    spans = [(lane(shape), shape.start, shape.end) for shape in shapes]
    high = max(end for _, _, end in spans) - min(start for _, start, _ in spans)
    low = high * 2.0**-32
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        # Of too many groups the rest need no look.
        if len(list(islice(_group_starts(spans, middle), limit + 1))) <= limit:
            high = middle
        else:
            low = middle
    bounds = [*_group_starts(spans, high), len(shapes)]
    return [shapes[first:last] for first, last in pairwise(bounds)]


def _group_starts(spans: Sequence[tuple[float, float, float]], longest: float) -> Iterator[int]:
    """Yield the index of the first of each group of spans (lane, start, end), if merged groups last
    at most ``longest``. O(spans)."""
    current, first, last = -1.0, 0.0, 0.0
    for at, (lane, start, end) in enumerate(spans):
        if end > last:
            last = end
        if lane != current or last - first > longest:
            yield at
            current, first, last = lane, start, end


def band_of(chart: MemoryMap) -> Lane:
    """Return a function that gives the band of addresses in which a region begins."""
    return lambda shape: _BANDS * shape.low // max(1, chart.top)


def around(group: Sequence[Shape]) -> Shape:
    """Return the bounding rectangle of shapes, with the colour and tooltip of the longest."""
    longest = max(group, key=lambda shape: shape.end - shape.start)
    return replace(
        longest,
        start=min(shape.start for shape in group),
        end=max(shape.end for shape in group),
        low=min(shape.low for shape in group),
        high=max(shape.high for shape in group),
    )
