"""Groups shapes of charts, so that browsers can redraw them fast enough while panning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from loadmaster.report.view import Shape

MAX_SHAPES = 3_000
"""The most rectangles in one chart; a screen has only a few thousand columns."""
_CELLS = 64
"""Columns, and rows, of the grid in which small shapes are grouped."""
_BISECTIONS = 32
"""Halvings of the time axis: 1 / 2^32 of it."""


def neighbours(shapes: Sequence[Shape], limit: int) -> list[Sequence[Shape]]:
    """Join neighbours on a lane into at most ``limit`` groups.

    The longest group that had to be joined is as short as possible, found by bisection: O(shapes x
    32). The shapes are sorted by lane, which is their lower end, and start. Lanes are never joined:
    with more lanes than ``limit`` as many groups as lanes remain.
    """
    if len(shapes) <= limit:
        return [[shape] for shape in shapes]
    low = 0.0
    high = max(shape.end for shape in shapes) - min(shape.start for shape in shapes)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if len(_joined(shapes, middle)) <= limit:
            high = middle
        else:
            low = middle
    firsts = _joined(shapes, high)
    return [shapes[first:last] for first, last in pairwise([*firsts, len(shapes)])]


def _joined(shapes: Sequence[Shape], longest: float) -> list[int]:
    """Return the first shape of each group where groups of several last at most ``longest``.
    O(shapes)."""
    firsts, lane, latest = [], -1.0, 0.0
    for at, shape in enumerate(shapes):
        if shape.low != lane or shape.end - latest > longest:
            firsts.append(at)
            lane, latest = shape.low, shape.start
    return firsts


def near(shapes: Sequence[Shape], limit: int) -> list[Sequence[Shape]]:
    """Leave the shapes with the largest areas alone, and group the others with near ones, in a
    grid; return at most ``limit`` groups, the largest shapes last."""
    if len(shapes) <= limit:
        return [[shape] for shape in shapes]
    start, end, low, high = np.array([(s.start, s.end, s.low, s.high) for s in shapes]).T
    ranked = np.argsort((start - end) * (high - low), kind="stable").tolist()
    keep = max(0, limit - _CELLS**2)
    first, top = start.min(), high.max() or 1
    across = ((start + end) / 2 - first) / (end.max() - first or 1)
    cells = (_CELLS * np.array((across, (low + high) / (2 * top)))).astype(int).T.tolist()
    groups: dict[tuple[int, int], list[Shape]] = defaultdict(list)
    for i in ranked[keep:]:
        groups[tuple(cells[i])].append(shapes[i])
    return [*(groups[cell] for cell in sorted(groups)), *([shapes[i]] for i in ranked[:keep])]
