"""Prints views as a page: one HTML file that opens without a network.

The template page.html has the markup; it makes texts printable and escapes them.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.report.charts import BokehModel, canvas, draw, legend_name, read_file
from loadmaster.report.colours import colour
from loadmaster.report.text import clipped, to_html
from loadmaster.report.view import PAGE, Chart, Page, PagePart

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True)
class Drawn(PagePart):
    """The place of a chart on the page: its HTML element, and its description for screen
    readers."""

    element: str
    label: str
    remark: str


def render(page: Page) -> str:
    """Render a page as HTML; equal pages give equal texts. Empty sections are left out, and the
    chart library if there are no charts."""
    on, plots = canvas(page.axis), list[BokehModel]()

    def placed(part: PagePart) -> PagePart:
        """Draw a chart, and return its place on the page; other parts stay."""
        if not isinstance(part, Chart):
            return part
        plot, remark = draw(part, on)
        plots.append(plot)
        # For screen readers a chart has its title, or its axes.
        labels = (axis["axis_label"] for axis in (plot["left"][0], plot["below"][0]))
        name = f"Chart: {plot['title']['text'] or ' over '.join(filter(None, labels))}"
        return Drawn(f"chart{len(plots) - 1}", name, remark)

    sections = [
        replace(section, parts=list(map(placed, section.parts))) for section in page.on(PAGE)
    ]
    packed = {}
    if plots:
        numbers: dict[int, str] = {}
        models = [_json(plot, numbers) for plot in plots]
        roots = {numbers[id(plot)]: f"chart{i}" for i, plot in enumerate(plots)}
        item = {"docid": "plan", "roots": roots, "root_ids": list(roots)}
        document = {"version": version("bokeh"), "title": "", "roots": models}
        charts = {"docs": {"plan": document}, "items": [item]}
        data = json.dumps(charts, separators=(",", ":"))
        packed = {"bokeh": _library(), "data": _compress(data)}
    return _template().render(page=page, sections=sections, packed=packed)


@cache
def _template() -> Template:
    """Load the template. Jinja2 is imported late, as it is installed only with the extra that draws
    charts."""
    from jinja2 import Environment
    from markupsafe import Markup

    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: Markup(to_html(value)) if type(value) is str else value,
    )
    environment.tests["a"] = lambda value, name: type(value).__name__ == name
    environment.globals.update(
        clipped=clipped,
        colour=colour,
        legend_name=legend_name,
        script=read_file("page.js"),
        style=read_file("page.css"),
    )
    return environment.from_string(read_file("page.html"))


@cache
def _library() -> str:
    """Return Bokeh's script, compressed. It is read from its file, because importing Bokeh takes
    longer than rendering a page."""
    script = Path(str(distribution("bokeh").locate_file("bokeh/server/static/js/bokeh.min.js")))
    return _compress(script.read_text("utf-8") + '\nBokeh.set_log_level("error");')


def _compress(text: str) -> str:
    """Compress a text to about a third, into characters that need no escaping; the page's script
    decompresses it."""
    return b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _json(value: Any, numbers: dict[int, str]) -> Any:
    """Return a value as JSON: a model in full at its first occurrence, then by its number; floats
    with fewer digits."""
    match value:
        case float():
            return float(f"{value:.7g}")
        case list() | tuple():
            # Fast path: most lists are columns of texts.
            return [item if type(item) is str else _json(item, numbers) for item in value]
        case BokehModel() if id(value) in numbers:
            return {"id": numbers[id(value)]}
        case BokehModel():
            number = numbers[id(value)] = f"m{len(numbers)}"
            attributes = {name: _json(own, numbers) for name, own in value.items()}
            return {"type": "object", "name": value.kind, "id": number, "attributes": attributes}
        case dict() if value.get("type") != "field":
            return {"type": "map", "entries": [[key, _json(value[key], numbers)] for key in value]}
    return value
