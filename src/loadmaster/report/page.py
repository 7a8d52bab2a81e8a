"""The frame of an HTML page around sections and charts: one file that opens without a network."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from bokeh.document import Document
from bokeh.models.annotations import Title
from bokeh.plotting import figure
from bokeh.resources import Resources

from loadmaster.report.text import Html, to_html

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline';"
    " img-src data: blob:; font-src data:"
)
"""The content security policy: nothing is loaded from elsewhere. Bokeh compiles its own callbacks
and needs 'unsafe-eval'."""


@dataclass
class Page:
    """Collects charts while the markup around them is written."""

    plots: list[figure] = field(default_factory=list)

    def place(self, drawn: tuple[figure, str]) -> Html:
        """Make the element of a chart, with a sentence below on what the chart leaves out."""
        plot, remark = drawn
        self.plots.append(plot)
        name = to_html(_name(plot))
        element = (
            f"<div class=chart id={_element(len(self.plots) - 1)} role=application tabindex=0"
            f' aria-label="{name}"></div>'
        )
        return Html(f"{element}{hint(remark)}")


def in_page(title: str, description: str, sections: Sequence[Html], page: Page) -> str:
    """Render the whole file; the same sections and charts give the same text. The library is in it
    only if there are charts."""
    style, script = (
        files("loadmaster.report").joinpath(name).read_text("utf-8")
        for name in ("page.css", "page.js")
    )
    packed = (
        {
            "bokeh": _library(),
            "data": _packed(json.dumps(_charts_json(page.plots), separators=(",", ":"))),
        }
        if page.plots
        else {}
    )
    return _PAGE.format(
        policy=POLICY,
        title=to_html(title),
        description=to_html(description),
        style=style,
        sections="\n".join(sections),
        packed="".join(
            f'<script type="application/gzip" id="{name}">{text}</script>\n'
            for name, text in packed.items()
        ),
        script=f"<script>\n{script}</script>" if packed else "",
    )


@cache
def _library() -> str:
    """Bokeh's script, packed."""
    return _packed(
        "\n".join(Resources(mode="inline", components=["bokeh"], log_level="error").js_raw)
    )


def _packed(text: str) -> str:
    """Compress text into characters that need no escaping, a third of its size; the page's script
    unpacks it."""
    return b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def section(heading: str, *parts: Html) -> Html:
    """Make a section of a heading, if there is one, and its parts."""
    head = f"<h2>{to_html(heading)}</h2>" if heading else ""
    return Html(f"<section>{head}{''.join(parts)}</section>")


def hint(text: str) -> Html:
    """Make a remark in small print."""
    return Html(f"<p class=hint>{to_html(text)}</p>" if text else "")


def _name(plot: figure) -> str:
    """Describe a chart to who does not see it: its title, or its axes."""
    axes = " over ".join(
        str(axis.axis_label) for axis in (plot.yaxis[0], plot.xaxis[0]) if axis.axis_label
    )
    title = plot.title.text if isinstance(plot.title, Title) else plot.title
    return f"Chart: {title or axes}"


def _element(index: int) -> str:
    return f"chart{index}"


def _charts_json(plots: Sequence[figure]) -> dict[str, Any]:
    """Return the charts as JSON for Bokeh's script."""
    document = Document()
    # Bokeh looks for all models of the document once, and not once for each plot.
    with document.models.freeze():
        for plot in plots:
            document.add_root(plot)
    names: dict[str, str] = {}
    models = _plain(document.to_json(deferred=False), names)
    roots = {names[plot.id]: _element(i) for i, plot in enumerate(plots)}
    item = {"docid": "plan", "roots": roots, "root_ids": list(roots)}
    return {"docs": {"plan": models}, "items": [item]}


def _plain(value: Any, names: dict[str, str]) -> Any:
    """Renumber models in order, as Bokeh's numbers depend on what the process has drawn before, and
    leave out digits that nobody sees."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {
            k: names.setdefault(v, f"m{len(names)}") if k == "id" else _plain(v, names)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        # Most of all that there is are texts in columns.
        return [item if type(item) is str else _plain(item, names) for item in value]
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
