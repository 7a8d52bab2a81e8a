"""The printer of views for pages: one HTML file that opens without a network."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distribution, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from loadmaster.report.charts import Field, Model, canvas, draw, legend_name
from loadmaster.report.colours import colour
from loadmaster.report.text import NOTHING, clipped, percent, to_html
from loadmaster.report.view import (
    Beside,
    Cell,
    Chart,
    Figure,
    Figures,
    Legend,
    Line,
    Marked,
    Notes,
    Page,
    Part,
    Shaded,
    Share,
    Table,
)

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
    " img-src data: blob:; font-src data:"
)
"""The content security policy: nothing is loaded from elsewhere, and no text becomes code."""


def render(page: Page) -> str:
    """Render a page; the same page gives the same text. The library for charts is in the file only
    if there are charts."""
    on, plots = canvas(page.axis), list[Model]()

    def shown(part: Part, heading: str) -> str:
        if not isinstance(part, Chart):
            return _markup(part, heading)
        plot, remark = draw(part, on)
        plots.append(plot)
        return (
            f"<div class=chart id={_element(len(plots) - 1)} role=application tabindex=0"
            f' aria-label="{to_html(_name(plot))}"></div>{_line(Line(remark, "hint"))}'
        )

    sections = []
    for section in page.sections:
        head = f"<h2>{to_html(section.heading)}</h2>" if section.heading else ""
        parts = "".join(shown(part, section.heading) for part in section.parts)
        sections.append(f"<section>{head}{parts}</section>")
    style, script = (
        files("loadmaster.report").joinpath(name).read_text("utf-8")
        for name in ("page.css", "page.js")
    )
    data = _packed(json.dumps(_charts_json(plots), separators=(",", ":"))) if plots else ""
    packed = {"bokeh": _library(), "data": data} if plots else {}
    return _PAGE.format(
        policy=POLICY,
        title=to_html(page.title),
        description=to_html(page.description),
        style=style,
        sections="\n".join(sections),
        packed="".join(
            f'<script type="application/gzip" id="{name}">{text}</script>\n'
            for name, text in packed.items()
        ),
        script=f"<script>\n{script}</script>" if packed else "",
    )


def _markup(part: Part, heading: str) -> str:
    """Return the markup of text and tables."""
    match part:
        case Line():
            return _line(part)
        case Notes():
            lines = "".join(f"<li>{to_html(line)}</li>" for line in part.lines)
            return f"<ul class=notes>{lines}</ul>" if lines else ""
        case Figures():
            return f"<div class=cards>{''.join(map(_card, part.figures))}</div>"
        case Table():
            return _table(part, heading) + _line(Line(part.rest, "hint"))
        case Beside():
            return "".join(_table(table, heading) for table in part.tables)
        case Legend():
            return _legend(part)
    raise TypeError(part)


def _line(line: Line) -> str:
    text = to_html(line.text)
    shapes = {
        "": "<p>{}</p>",
        "strong": "<p><strong>{}</strong></p>",
        "hint": "<p class=hint>{}</p>",
        "heading": "<h3>{}</h3>",
    }
    return shapes[line.style].format(text) if text else ""


def _card(figure: Figure) -> str:
    said = figure.distance
    if figure.bound:
        said = f"{'upper' if figure.upper else 'lower'} bound {figure.bound}, {said}"
    return (
        f"<div class=card><h3>{to_html(figure.name)}</h3><p class=value>{to_html(figure.value)}</p>"
        f"<p>{to_html(said)}</p></div>"
    )


def _table(table: Table, heading: str) -> str:
    """Make a table in a frame that scrolls sideways; its name is for screen readers."""
    label = f"{heading} {table.columns[0].lstrip('>~')}"
    classes = [' class="figure"' if name.startswith(">") else "" for name in table.columns]
    heads = "".join(
        f"<th{kind} scope=col>{to_html(name.lstrip('>~'))}</th>"
        for kind, name in zip(classes, table.columns, strict=True)
    )
    lines = []
    for row in table.rows:
        cells = zip(classes, row, strict=True)
        lines.append(
            f"<tr>{''.join(f'<td{kind}>{_cell(cell)}</td>' for kind, cell in cells)}</tr>\n"
        )
    return (
        f'<div class="wide" role=region tabindex=0 aria-label="{to_html(label)}"><table>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    match cell:
        case Share():
            width = 100 * min(1.0, max(0.0, cell.value))
            return (
                f'<span class=meter><i style="width:{width:.1f}%"></i></span>'
                f"<span class=share>{percent(cell.value)}</span>"
            )
        case Shaded() if cell.text == NOTHING:
            return f"<span class=none>{NOTHING}</span>"
        case Shaded():
            return f'<span class=heat style="--heat:{cell.share:.3f}">{to_html(cell.text)}</span>'
        case Marked():
            return _swatch(cell.colour) + to_html(cell.text)
    return to_html(cell)


def _swatch(number: int) -> str:
    return f'<i class=swatch style="background:{colour(number)}"></i>'


def _legend(legend: Legend) -> str:
    """Make a button for each network; the page's script has it hide the network's shapes."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-shapes="{legend_name(number)}"'
        f' title="{to_html(name)}">{_swatch(number)}{to_html(clipped(name, 40))}</button>'
        for number, name in enumerate(legend.names)
    )
    return f'<div class=legend role=group aria-label="What the charts show">{buttons}</div>'


@cache
def _library() -> str:
    """Bokeh's script, packed. Importing Bokeh would take longer than drawing a page."""
    script = Path(str(distribution("bokeh").locate_file("bokeh/server/static/js/bokeh.min.js")))
    return _packed(script.read_text("utf-8") + '\nBokeh.set_log_level("error");')


def _packed(text: str) -> str:
    """Compress text into characters that need no escaping, a third of its size; the page's script
    unpacks it."""
    return b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _name(plot: Model) -> str:
    """Describe a chart to who does not see it: its title, or its axes."""
    labels = (axis["axis_label"] for axis in (plot["left"][0], plot["below"][0]))
    return f"Chart: {plot['title']['text'] or ' over '.join(filter(None, labels))}"


def _element(index: int) -> str:
    return f"chart{index}"


def _charts_json(plots: Sequence[Model]) -> dict[str, Any]:
    """Return the charts as JSON for Bokeh's script."""
    numbers: dict[int, str] = {}
    models = [_json(plot, numbers) for plot in plots]
    roots = {numbers[id(plot)]: _element(i) for i, plot in enumerate(plots)}
    item = {"docid": "plan", "roots": roots, "root_ids": list(roots)}
    document = {"version": version("bokeh"), "title": "", "roots": models}
    return {"docs": {"plan": document}, "items": [item]}


def _json(value: Any, numbers: dict[int, str]) -> Any:
    """Write a model out where it first comes, and refer to it by its number from then on; leave out
    digits that nobody sees."""
    match value:
        case Field():
            return {"type": "field", "field": value}
        case float():
            return float(f"{value:.7g}")
        case list() | tuple():
            # Most of all that there is are texts in columns.
            return [item if type(item) is str else _json(item, numbers) for item in value]
        case Model() if id(value) in numbers:
            return {"id": numbers[id(value)]}
        case Model():
            number = numbers[id(value)] = f"m{len(numbers)}"
            attributes = {name: _json(own, numbers) for name, own in value.items()}
            return {"type": "object", "name": value.kind, "id": number, "attributes": attributes}
        case dict():
            return {"type": "map", "entries": [[key, _json(value[key], numbers)] for key in value]}
    return value


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title} · Loadmaster</title>
<style>
{style}</style>
</head>
<body>
<main>
<header><p class=brand>Loadmaster</p><h1>{title}</h1><p>{description}</p></header>
<noscript><p>The charts are drawn by a script in this file; the tables are not.</p></noscript>
{sections}
</main>
{packed}{script}
</body>
</html>
"""
