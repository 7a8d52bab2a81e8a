"""Prints answers in notebooks: as a line, as text, as HTML, and as a pandas table.

Charts are small inline SVG, drawn without a library. The number of shapes is limited, so a picture
takes a few kilobytes for any answer. Text and axes have the colour of the page's text, which suits
light and dark pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from io import StringIO
from typing import Any

from rich.console import Console

from loadmaster.core.errors import package
from loadmaster.report.colours import colour
from loadmaster.report.merging import around, band_of, neighbours
from loadmaster.report.terminal import printed
from loadmaster.report.text import NOTHING, clipped, plural, printable, to_html
from loadmaster.report.view import (
    NOTEBOOK,
    Chart,
    Curve,
    Figures,
    Line,
    MemoryMap,
    Notes,
    Page,
    PagePart,
    Shape,
    Table,
    TimelineChart,
)

_BUILDERS = {
    "PlanRecord": "plan",
    "Allocation": "packing",
    "BankAllocation": "packing",
    "JobMapping": "mapping",
    "MemoryPlan": "placement",
    "Graph": "inspection",
}
"""The module ``NAME`` with the function ``NAME_page`` that makes the page of an answer, by class
name, so that only the module of the answer is imported."""
_WIDTH, _NAMES = 640, 120
"""Width in pixels of a picture, and of the names on its left."""
_LANE, _LANES = 18, 12
"""Height in pixels of a lane, and most lanes of a picture."""
_JOBS, _REGIONS, _STEPS = 300, 150, 150
"""Most shapes in all lanes, most regions of a memory, and most steps of a curve."""


def line(answer: object) -> str:
    """Return an answer in one line, such as ``<Plan of squeezenet on edge-npu: feasible, 1.23 ms,
    4.5 % above the bound>``."""
    return f"<{_headline(_page(answer))}>"


def text(answer: object) -> str:
    """Return title, figures and notes of an answer as plain text."""
    page, file = _page(answer), StringIO()
    shown = [Line(_headline(page)), *_parts(page)]
    Console(file=file, width=1000, force_terminal=False).print(printed(shown))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines() if line.strip())


def html(answer: object) -> str:
    """Return title, figures, pictures and notes of an answer as HTML."""
    page = _page(answer)
    title = f"<b>{to_html(page.title)}</b>: {to_html(page.headline)}"
    return f"<div><div>{title}</div>{''.join(map(_html, _parts(page)))}</div>"


def table(answer: object) -> Any:
    """Return the rows of an answer as a pandas ``DataFrame``."""
    pandas = package("pandas", f"{type(answer).__name__}.to_pandas")
    return pandas.DataFrame(list(_page(answer).rows()))


def _page(answer: object) -> Page:
    """Return the page of an answer, by its class."""
    kinds = (kind.__name__ for kind in type(answer).__mro__)
    name = next(_BUILDERS[kind] for kind in kinds if kind in _BUILDERS)
    made: Page = getattr(import_module(f"loadmaster.report.{name}"), f"{name}_page")(answer)
    return made


def _headline(page: Page) -> str:
    """Return title and headline as one printable line."""
    return printable(f"{page.title}: {page.headline}")


def _parts(page: Page) -> list[PagePart]:
    """Return all parts of the sections for notebooks."""
    return [part for section in page.on(NOTEBOOK) for part in section.parts]


def _html(part: PagePart) -> str:
    """Return a part of a report as HTML; empty for parts that notebooks leave out."""
    match part:
        case Chart():
            return draw(part)
        case Line(text):
            return f"<div><small>{to_html(text)}</small></div>"
        case Notes():
            return "".join(_html(Line(line)) for line in part.lines)
        case Figures():
            return _html(part.table())
        case Table():
            heads = [head.lstrip("+>~") for head in part.rows[0]]
            rows = [heads, *(row.values() for row in part.rows)]
            body = "".join(
                f"<tr>{''.join(f'<td>{to_html(cell) or NOTHING}</td>' for cell in row)}</tr>"
                for row in rows
            )
            return f"<table>{body}</table>"
    return ""


def draw(chart: Chart) -> str:
    """Return the SVG of a chart: lanes, a memory map or a curve. Merged lanes have the colour of
    the longest job, merged steps the largest amount; dashed lines are peak, lower bound, capacity
    and limit."""
    name = clipped(chart.title, 20)
    match chart:
        case TimelineChart():
            names = chart.lanes[:_LANES]
            # Heights count from below.
            shapes = [
                replace(shape, low=low, high=low + 0.8)
                for shape in chart.shapes
                if (low := len(names) - shape.low - 0.9) > 0
            ]
            texts = [(_LANE * at + 13.0, clipped(lane, 20)) for at, lane in enumerate(names)]
            more = len(chart.lanes) - len(names)
            below = f"{plural(more, 'lane')} more" * (more > 0)
            groups = neighbours(shapes, _JOBS)
            return _picture(groups, len(names), _LANE * len(names), texts, below)
        case MemoryMap():
            levels = [size for size in chart.levels.values() if size <= chart.top]
            groups = neighbours(chart.shapes, _REGIONS, band_of(chart))
            return _picture(groups, chart.top, 140, [(135.0, name)], chart.sizes, levels)
        case Curve():
            limits = [chart.limit[0]] if chart.limit else []
            top = max([0.0, *limits, *(shape.high for shape in chart.shapes)])
            texts = [(13.0, name or clipped(chart.label, 20))]
            return _picture(neighbours(chart.shapes, _STEPS), top, 60, texts, levels=limits)
    raise TypeError(chart)


def _picture(
    groups: Sequence[Sequence[Shape]],
    top: float,
    height: int,
    texts: Sequence[tuple[float, str]],
    below: str = "",
    levels: Sequence[float] = (),
) -> str:
    """Return the SVG of groups of shapes, with heights up to ``top`` on ``height`` pixels, texts on
    the left and below, and dashed lines at levels."""
    shapes = list(map(around, groups))
    first = min((shape.start for shape in shapes), default=0.0)
    last = max((shape.end for shape in shapes), default=1.0)
    across = (_WIDTH - _NAMES) / ((last - first) or 1)
    up = height / (top or 1)
    paths: dict[str, str] = defaultdict(str)
    for shape in shapes:
        corner = f"M{_NAMES + across * (shape.start - first):.1f} {height - up * shape.low:.1f}"
        width = across * (shape.end - shape.start)
        tall = up * (shape.high - shape.low)
        paths[colour(shape.colour)] += f"{corner}h{width:.1f}v-{tall:.1f}h-{width:.1f}z"
    marks = [
        f'<path d="{path}" fill="{paint}" fill-opacity=".7" stroke="{paint}" stroke-width=".4"/>'
        for paint, path in sorted(paths.items())
    ]
    marks += [
        f'<path d="M{_NAMES} {height - up * level + 0.5:.1f}H{_WIDTH}" stroke="currentColor"'
        ' stroke-dasharray="4 3"/>'
        for level in levels
    ]
    if below:
        texts, height = [*texts, (height + 13, below)], height + _LANE
    marks += [f'<text y="{y:.0f}">{to_html(text)}</text>' for y, text in texts]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        ' style="max-width:100%;display:block;margin:.4em 0" font-family="sans-serif"'
        f' font-size="11" fill="currentColor" role="img">{"".join(marks)}</svg>'
    )
