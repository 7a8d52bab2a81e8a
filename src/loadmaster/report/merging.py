"""Merges shapes of charts, so that browsers can redraw them fast enough while panning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from loadmaster.report.view import Box

MAX_SHAPES = 3_000
"""The most rectangles in one chart; a screen has only a few thousand columns."""
_BISECTIONS = 32
"""Halvings of the time axis: 1 / 2^32 of it."""


def merge_neighbours(
    lanes: Sequence[int], starts: Sequence[float], ends: Sequence[float], limit: int
) -> list[range]:
    """Join neighbours on a lane into at most ``limit`` groups.

    The longest group that had to be joined is as short as possible, found by bisection: O(items x
    32). The items are sorted by lane and start; each group is a range of their indices. Lanes are
    never joined: with more lanes than ``limit`` as many groups as lanes remain.
    """
    count, low, high = len(starts), 0.0, max(ends, default=0.0) - min(starts, default=0.0)
    if count <= limit:
        return [range(at, at + 1) for at in range(count)]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if len(_joined(lanes, starts, ends, middle)) <= limit:
            high = middle
        else:
            low = middle
    firsts = _joined(lanes, starts, ends, high)
    return [range(first, last) for first, last in pairwise([*firsts, count])]


def _joined(
    lanes: Sequence[int], starts: Sequence[float], ends: Sequence[float], longest: float
) -> list[int]:
    """Return the first item of each group where groups of several items last at most ``longest``.
    O(items)."""
    firsts, lane, latest = [], -1, 0.0
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if lanes[at] != lane or end - latest > longest:
            firsts.append(at)
            lane, latest = lanes[at], start
    return firsts


def split(boxes: Sequence[Box], limit: int, cells: int = 64) -> tuple[list[int], list[list[int]]]:
    """Choose the boxes with the most bytes x time; group the others with near ones, in a grid of
    ``cells`` x ``cells``.

    Both parts together are at most ``limit`` shapes; the results are indices of boxes.
    """
    if len(boxes) <= limit:
        return list(range(len(boxes))), []
    ranked = sorted(
        range(len(boxes)),
        key=lambda i: ((boxes[i].start - boxes[i].end) * (boxes[i].high - boxes[i].low), i),
    )
    keep = max(0, limit - cells**2)
    first = min(box.start for box in boxes)
    length = max(box.end for box in boxes) - first or 1
    top = max(box.high for box in boxes) or 1
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in ranked[keep:]:
        across = ((boxes[i].start + boxes[i].end) / 2 - first) / length
        up = (boxes[i].low + boxes[i].high) / (2 * top)
        groups[int(across * cells), int(up * cells)].append(i)
    return ranked[:keep], [groups[cell] for cell in sorted(groups)]
