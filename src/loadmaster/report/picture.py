"""Small pictures as inline SVG, without a library: bars beside figures, lanes over time, amounts
over time, and maps of memories.

What is drawn is sampled at a fixed number of columns, so that a picture takes a few kilobytes
however large the answer is. Text and axes have the colour of the page's text, so that pictures suit
light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil

from loadmaster.report.colours import PALETTE
from loadmaster.report.text import clipped, plural, printable

_WIDTH, _NAMES, _HEIGHT = 640, 120, 18
_LANES = 12
_CELLS = 600
_COLUMNS = 150
"""Pixels of a picture and of the names beside it, and of a lane; lanes that are drawn; columns of
all lanes, and of amounts."""
_MAP, _REGIONS = 140, 400
"""Pixels of a memory map's height, and the regions that it draws."""


@dataclass(frozen=True)
class Bar:
    """An amount as a bar, with its text."""

    name: str
    value: float
    text: str


@dataclass(frozen=True)
class Span:
    """What takes [start, end) of a lane, and the number of its colour."""

    lane: int
    start: float
    end: float
    colour: int = 0


@dataclass(frozen=True)
class Box:
    """Addresses [low, high) that are taken over [start, end), and the number of their colour."""

    start: float
    end: float
    low: float
    high: float
    colour: int = 0


def bars(rows: Sequence[Bar]) -> str:
    """Draw one bar for each amount, the longest over the whole width; at most twelve."""
    longest = max((row.value for row in rows), default=0) or 1
    width = (_WIDTH - _NAMES) * 0.7
    marks = []
    for at, row in enumerate(rows[:_LANES]):
        top, length = at * _HEIGHT, width * row.value / longest
        marks += [
            _name(at, row.name),
            (
                f'<rect x="{_NAMES}" y="{top + 3}" width="{length:.1f}" height="12"'
                f' fill="{PALETTE[0]}"/>'
            ),
        ]
        marks.append(_text(_NAMES + length + 6, top + 13, row.text))
    return _svg(marks, min(len(rows), _LANES) * _HEIGHT, _rest(len(rows), "bar"))


def lanes(names: Sequence[str], spans: Iterable[Span], end: float) -> str:
    """Draw a lane for each name, at most twelve, and in each column of it the colour that takes
    most of the column. O(spans + columns)."""
    shown = min(len(names), _LANES)
    columns = max(1, min(_COLUMNS, _CELLS // max(1, shown)))
    filled: list[list[dict[int, float]]] = [[{} for _ in range(columns)] for _ in range(shown)]
    for span in spans:
        if span.lane < shown and end > 0:
            _fill(
                filled[span.lane], columns * span.start / end, columns * span.end / end, span.colour
            )
    marks = []
    step = (_WIDTH - _NAMES) / columns
    for at, lane in enumerate(filled):
        marks.append(_name(at, names[at]))
        paths: dict[int, str] = {}
        first = 0
        for colour, run in groupby(
            max(cell, key=cell.__getitem__) if cell else None for cell in lane
        ):
            length = len(list(run))
            if colour is not None:
                paths[colour] = (
                    paths.get(colour, "") + f"M{_NAMES + first * step:.1f}"
                    f" {at * _HEIGHT + 2}h{length * step:.1f}v14h-{length * step:.1f}z"
                )
            first += length
        marks += [
            f'<path d="{path}" fill="{PALETTE[colour % len(PALETTE)]}"/>'
            for colour, path in sorted(paths.items())
        ]
    return _svg(marks, shown * _HEIGHT, _rest(len(names), "lane"))


def amounts(
    times: Sequence[float], values: Sequence[float], end: float, limit: float, name: str
) -> str:
    """Draw an amount that is ``values[i]`` from ``times[i]`` on, the most in each column, below a
    dashed line at ``limit``.

    A limit of 0 is none. O(values + columns).
    """
    most = [0.0] * _COLUMNS
    scale = _COLUMNS / end if end > 0 else 0.0
    for at, (start, value) in enumerate(zip(times, values, strict=True)):
        until = times[at + 1] if at + 1 < len(times) else end
        first = min(_COLUMNS - 1, int(scale * start))
        for column in range(first, min(_COLUMNS, max(first + 1, ceil(scale * until)))):
            most[column] = max(most[column], value)
    height, step = 60, (_WIDTH - _NAMES) / _COLUMNS
    top = max(*most, limit) or 1
    levels = [height * (1 - value / top) for value in most]
    path = (
        f"M{_NAMES} {height}"
        + "".join(f"V{level:.1f}h{step:.1f}" for level in levels)
        + f"V{height}z"
    )
    marks = [_name(0, name), f'<path d="{path}" fill="{PALETTE[0]}" fill-opacity=".7"/>']
    if limit:
        level = f"{height * (1 - limit / top) + 0.5:.1f}"
        marks.append(
            f'<path d="M{_NAMES} {level}H{_WIDTH}" stroke="currentColor" stroke-dasharray="4 3"/>'
        )
    return _svg(marks, height, "")


def regions(boxes: Sequence[Box], top: float, levels: Sequence[tuple[float, str]]) -> str:
    """Draw a memory map: address upwards against time, the largest regions only if there are too
    many, and dashed levels with their names.

    O(boxes log boxes).
    """
    largest = sorted(
        boxes, key=lambda box: (box.end - box.start) * (box.high - box.low), reverse=True
    )[:_REGIONS]
    first, last = (
        min((box.start for box in boxes), default=0),
        max((box.end for box in boxes), default=1),
    )
    across, up = (_WIDTH - _NAMES) / ((last - first) or 1), _MAP / (top or 1)
    paths: dict[int, str] = {}
    for box in largest:
        width, height = across * (box.end - box.start), up * (box.high - box.low)
        corner = f"M{_NAMES + across * (box.start - first):.1f} {_MAP - up * box.low:.1f}"
        colour = box.colour % len(PALETTE)
        paths[colour] = f"{paths.get(colour, '')}{corner}h{width:.1f}v-{height:.1f}h-{width:.1f}z"
    marks = [
        f'<path d="{path}" fill="{PALETTE[colour]}" fill-opacity=".6" stroke="{PALETTE[colour]}"'
        ' stroke-width=".6"/>'
        for colour, path in sorted(paths.items())
    ]
    for value, name in levels:
        height = _MAP - up * value
        marks.append(
            f'<path d="M{_NAMES} {height + 0.5:.1f}H{_WIDTH}" stroke="currentColor"'
            ' stroke-dasharray="4 3"/>'
        )
        marks.append(_text(0, max(10.0, height + 4), name))
    left_out = len(boxes) - len(largest)
    return _svg(
        marks,
        _MAP + 1,
        f"{plural(left_out, 'region')} of the smallest not drawn" if left_out else "",
    )


def _fill(lane: list[dict[int, float]], start: float, end: float, colour: int) -> None:
    """Add what a span takes of every column of a lane; neighbours of a long one cost a column
    each."""
    for column in range(max(0, int(start)), min(len(lane), int(end) + 1)):
        share = min(end, column + 1) - max(start, column)
        if share > 0:
            lane[column][colour] = lane[column].get(colour, 0.0) + share


def _name(lane: int, name: str) -> str:
    return _text(0, lane * _HEIGHT + 13, clipped(printable(name), 18))


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'


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
