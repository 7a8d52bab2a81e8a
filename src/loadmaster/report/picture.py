"""Draws the charts of a view as small inline SVG without a library, for notebooks.

What is drawn is sampled at a fixed number of columns, so that a picture takes a few kilobytes
however large the answer is. Text and axes have the colour of the page's text, so that pictures suit
light and dark pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from math import ceil

from loadmaster.core.units import format_bytes
from loadmaster.report.colours import PALETTE, colour
from loadmaster.report.text import clipped, plural, to_html
from loadmaster.report.view import Bar, Curve, MemoryMap, Timeline

_WIDTH, _NAMES, _HEIGHT = 640, 120, 18
"""Pixels of a picture, of the names beside it, and of a lane."""
_LANES = 12
"""Lanes that are drawn at most."""
_CELLS, _COLUMNS = 600, 150
"""Columns of all lanes together, and of a picture, at most."""
_MAP, _REGIONS = 140, 400
"""Pixels of a memory map's height, and the regions that it draws."""


def draw(chart: Timeline | MemoryMap | Curve | Sequence[Bar]) -> str:
    """Draw a chart."""
    match chart:
        case Timeline():
            return _lanes(chart)
        case MemoryMap():
            return _regions(chart)
        case Curve():
            return _amounts(chart)
    return _bars(chart)


def _bars(rows: Sequence[Bar]) -> str:
    """Draw a bar for each amount, the longest over most of the width."""
    longest = max((row.value for row in rows), default=0) or 1
    width = (_WIDTH - _NAMES) * 0.7
    marks = []
    for at, row in enumerate(rows[:_LANES]):
        top, length = at * _HEIGHT, width * row.value / longest
        size = f'width="{length:.1f}" height="12"'
        bar = f'<rect x="{_NAMES}" y="{top + 3}" {size} fill="{PALETTE[0]}"/>'
        marks += [_name(at, row.name), bar, _text(_NAMES + length + 6, top + 13, row.text)]
    return _svg(marks, min(len(rows), _LANES) * _HEIGHT, _rest(len(rows), "bar"))


def _lanes(chart: Timeline) -> str:
    """Draw lanes, and in each column of a lane the colour that takes most of the column.
    O(spans + columns)."""
    shown = min(len(chart.lanes), _LANES)
    end = max((span.end for span in chart.spans), default=0.0) or 1.0
    columns = max(1, min(_COLUMNS, _CELLS // max(1, shown)))
    taken: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for span in chart.spans:
        first, last = columns * span.start / end, columns * span.end / end
        for column in range(max(0, int(first)), min(columns, int(last) + 1)):
            share = min(last, column + 1) - max(first, column)
            if share > 0:
                taken[span.lane, column][span.colour] += share
    marks = []
    step = (_WIDTH - _NAMES) / columns
    for lane in range(shown):
        marks.append(_name(lane, chart.lanes[lane]))
        paths: dict[int, str] = defaultdict(str)
        cells = (taken.get((lane, column), {}) for column in range(columns))
        at = 0
        for number, run in groupby(max(cell, key=cell.__getitem__, default=None) for cell in cells):
            length = len(list(run))
            if number is not None:
                corner = f"M{_NAMES + at * step:.1f} {lane * _HEIGHT + 2}"
                paths[number] += f"{corner}h{length * step:.1f}v14h-{length * step:.1f}z"
            at += length
        marks += [
            f'<path d="{path}" fill="{colour(number)}"/>' for number, path in sorted(paths.items())
        ]
    return _svg(marks, shown * _HEIGHT, _rest(len(chart.lanes), "lane"))


def _amounts(chart: Curve) -> str:
    """Draw the largest amount in each column below a dashed line at the limit.
    O(steps + columns)."""
    most = [0.0] * _COLUMNS
    end = max((until for _, until, _ in chart.steps), default=0.0)
    scale = _COLUMNS / end if end > 0 else 0.0
    for start, until, value in chart.steps:
        first = min(_COLUMNS - 1, int(scale * start))
        for column in range(first, min(_COLUMNS, max(first + 1, ceil(scale * until)))):
            most[column] = max(most[column], value)
    height, step = 60, (_WIDTH - _NAMES) / _COLUMNS
    top = max(*most, chart.limit or 0.0) or 1
    levels = "".join(f"V{height * (1 - value / top):.1f}h{step:.1f}" for value in most)
    path = f'<path d="M{_NAMES} {height}{levels}V{height}z" fill="{PALETTE[0]}"'
    marks = [_name(0, chart.title), f'{path} fill-opacity=".7"/>']
    if chart.limit:
        marks.append(_dashed(height * (1 - chart.limit / top)))
    return _svg(marks, height, "")


def _regions(chart: MemoryMap) -> str:
    """Draw the largest regions of a memory map, with dashed lines at its peak, its lower bound and
    its capacity. O(boxes log boxes)."""
    boxes, peak = chart.boxes, chart.peak
    levels = []
    if chart.bound is not None and chart.bound < 0.9 * peak:
        levels.append((chart.bound, f"bound {format_bytes(chart.bound)}"))
    close = chart.capacity is not None and chart.capacity <= 2 * peak
    if chart.capacity is not None and close:
        levels.append((chart.capacity, format_bytes(chart.capacity)))
    if not close or peak <= 0.9 * (chart.capacity or 0):
        levels.append((peak, f"peak {format_bytes(peak)}"))
    first = min((box.start for box in boxes), default=0)
    last = max((box.end for box in boxes), default=1)
    across = (_WIDTH - _NAMES) / ((last - first) or 1)
    up = _MAP / (max(peak, *(level for level, _ in levels), 0) or 1)
    largest = sorted(boxes, key=lambda box: (box.start - box.end) * (box.high - box.low))
    paths: dict[str, str] = defaultdict(str)
    for box in largest[:_REGIONS]:
        width, height = across * (box.end - box.start), up * (box.high - box.low)
        corner = f"M{_NAMES + across * (box.start - first):.1f} {_MAP - up * box.low:.1f}"
        paths[colour(box.colour)] += f"{corner}h{width:.1f}v-{height:.1f}h-{width:.1f}z"
    marks = [
        f'<path d="{path}" fill="{paint}" fill-opacity=".6" stroke="{paint}" stroke-width=".6"/>'
        for paint, path in sorted(paths.items())
    ]
    for value, name in levels:
        height = _MAP - up * value
        marks += [_dashed(height), _text(0, max(10.0, height + 4), name)]
    left_out = len(boxes) - _REGIONS
    below = f"{plural(left_out, 'region')} of the smallest not drawn" if left_out > 0 else ""
    return _svg(marks, _MAP + 1, below)


def _dashed(height: float) -> str:
    line = f"M{_NAMES} {height + 0.5:.1f}H{_WIDTH}"
    return f'<path d="{line}" stroke="currentColor" stroke-dasharray="4 3"/>'


def _name(lane: int, name: str) -> str:
    return _text(0, lane * _HEIGHT + 13, clipped(name, 18))


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}">{to_html(text)}</text>'


def _rest(count: int, noun: str) -> str:
    return f"{plural(count - _LANES, noun)} more" if count > _LANES else ""


def _svg(marks: Sequence[str], height: int, below: str) -> str:
    if below:
        marks, height = [*marks, _text(0, height + 13, below)], height + _HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        ' style="max-width:100%;display:block;margin:.4em 0" font-family="sans-serif"'
        f' font-size="11" fill="currentColor" role="img">{"".join(marks)}</svg>'
    )
