"""Joins shapes of charts, so that browsers can redraw them fast enough while panning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

from loadmaster.report.view import MemoryMap, Shape

_BISECTIONS = 32
"""Halvings of the time axis: 1 / 2^32 of it."""
_BANDS = 64
"""Bands of addresses, in which regions of a memory are joined."""
Lane = Callable[[Shape], float]
lane_of: Lane = attrgetter("low")
"""The lane of a shape: its lower end."""


def neighbours(shapes: Sequence[Shape], limit: int, lane: Lane = lane_of) -> list[Sequence[Shape]]:
    """Sort shapes by lane and start, and join neighbours on a lane into at most ``limit`` groups.

    The longest group that had to be joined is as short as possible, found by bisection: O(shapes x
    32). Lanes are never joined: with more lanes than ``limit`` as many groups as lanes remain.
    """
    shapes = sorted(shapes, key=lambda shape: (lane(shape), shape.start))
    if len(shapes) <= limit:
        return [[shape] for shape in shapes]
    lanes = list(map(lane, shapes))
    low = 0.0
    high = max(shape.end for shape in shapes) - min(shape.start for shape in shapes)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if len(_firsts(shapes, lanes, middle)) <= limit:
            high = middle
        else:
            low = middle
    firsts = _firsts(shapes, lanes, high)
    return [shapes[first:last] for first, last in pairwise([*firsts, len(shapes)])]


def _firsts(shapes: Sequence[Shape], lanes: Sequence[float], longest: float) -> list[int]:
    """Return the first shape of each group where groups of several last at most ``longest``.
    O(shapes)."""
    firsts, current, start, end = list[int](), -1.0, 0.0, 0.0
    for at, (lane, shape) in enumerate(zip(lanes, shapes, strict=True)):
        end = max(end, shape.end)
        if lane != current or end - start > longest:
            firsts.append(at)
            current, start, end = lane, shape.start, shape.end
    return firsts


def band_of(chart: MemoryMap) -> Lane:
    """Return the band of a map in which a region begins."""
    return lambda shape: _BANDS * shape.low // max(1, chart.top)


def around(group: Sequence[Shape]) -> Shape:
    """Make one shape of several: their outline, with the colour and the tooltip of the longest."""
    longest = max(group, key=lambda shape: shape.end - shape.start)
    start = min(shape.start for shape in group)
    end = max(shape.end for shape in group)
    low = min(shape.low for shape in group)
    return replace(longest, start=start, end=end, low=low, high=max(shape.high for shape in group))
