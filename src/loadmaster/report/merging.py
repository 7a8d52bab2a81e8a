"""Merges shapes of charts, so that browsers can redraw them fast enough while panning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from loadmaster.report.view import Box

MAX_SHAPES = 3_000
"""The most rectangles in one chart; a screen has only a few thousand columns."""
_CELLS = 64
"""Columns, and rows, of the grid in which small boxes are grouped."""
_BISECTIONS = 32
"""Halvings of the time axis: 1 / 2^32 of it."""


def merge_neighbours(intervals: Sequence[tuple[int, float, float]], limit: int) -> list[range]:
    """Join neighbours on a lane into at most ``limit`` groups.

    The longest group that had to be joined is as short as possible, found by bisection: O(items x
    32). The intervals (lane, start, end) are sorted by lane and start; each group is a range of
    their indices. Lanes are never joined: with more lanes than ``limit`` as many groups as lanes
    remain.
    """
    if len(intervals) <= limit:
        return [range(at, at + 1) for at in range(len(intervals))]
    low = 0.0
    high = max(end for *_, end in intervals) - min(start for _, start, _ in intervals)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if len(_joined(intervals, middle)) <= limit:
            high = middle
        else:
            low = middle
    firsts = _joined(intervals, high)
    return [range(first, last) for first, last in pairwise([*firsts, len(intervals)])]


def _joined(intervals: Sequence[tuple[int, float, float]], longest: float) -> list[int]:
    """Return the first item of each group where groups of several items last at most ``longest``.
    O(items)."""
    firsts, lane, latest = [], -1, 0.0
    for at, (own, start, end) in enumerate(intervals):
        if own != lane or end - latest > longest:
            firsts.append(at)
            lane, latest = own, start
    return firsts


def split(boxes: Sequence[Box], limit: int) -> tuple[list[int], list[list[int]]]:
    """Choose the boxes with the most bytes x time; group the others with near ones, in a grid.

    Both parts together are at most ``limit`` shapes; the results are indices of boxes.
    """
    if len(boxes) <= limit:
        return list(range(len(boxes))), []
    start, end, low, high = np.array([(b.start, b.end, b.low, b.high) for b in boxes]).T
    ranked = np.argsort((start - end) * (high - low), kind="stable").tolist()
    keep = max(0, limit - _CELLS**2)
    first, top = start.min(), high.max() or 1
    across = ((start + end) / 2 - first) / (end.max() - first or 1)
    cells = (_CELLS * np.array((across, (low + high) / (2 * top)))).astype(int).T.tolist()
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in ranked[keep:]:
        groups[tuple(cells[i])].append(i)
    return ranked[:keep], [groups[cell] for cell in sorted(groups)]
