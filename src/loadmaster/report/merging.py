"""Merges shapes of charts, so that browsers can redraw them fast enough while panning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from loadmaster.report.view import Box

MAX_SHAPES = 3_000
"""The most rectangles in one chart; a screen has only a few thousand columns."""


def merge_neighbours(
    lanes: Sequence[int], starts: Sequence[float], ends: Sequence[float], limit: int
) -> list[range]:
    """Join neighbours on a lane until at most ``limit`` groups are left, always the pair that spans
    the shortest time.

    The items are sorted by lane and start; each group is a range of their indices. What is long
    stays by itself, and no group is longer than it must be. Lanes are never joined: with more lanes
    than ``limit`` as many groups as lanes remain.
    """
    count = len(starts)
    stop = [i + 1 for i in range(count)]
    left = [i - 1 for i in range(count)]
    heap = [
        (ends[i + 1] - starts[i], i, i + 1, i + 2)
        for i in range(count - 1)
        if lanes[i] == lanes[i + 1]
    ]
    heapify(heap)
    for _ in range(max(0, count - limit)):
        pair = _shortest_pair(heap, stop)
        if pair is None:
            break
        first, middle, last = pair
        stop[first], stop[middle] = last, 0
        if last < count:
            left[last] = first
        for group in (first, left[first]):
            if group >= 0 and (follower := stop[group]) < count and lanes[group] == lanes[follower]:
                heappush(
                    heap,
                    (ends[stop[follower] - 1] - starts[group], group, follower, stop[follower]),
                )
    return [range(i, stop[i]) for i in range(count) if stop[i]]


def _shortest_pair(
    heap: list[tuple[float, int, int, int]], stop: Sequence[int]
) -> tuple[int, int, int] | None:
    """Return the next pair of groups, [first, middle) and [middle, last), that both still exist."""
    while heap:
        _, first, middle, last = heappop(heap)
        if stop[first] == middle and stop[middle] == last:
            return first, middle, last
    return None


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
