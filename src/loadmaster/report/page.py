"""One file that opens without a network and asks for nothing: the frame around sections and charts, whatever they show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from bokeh.document import Document
from bokeh.plotting import figure
from bokeh.resources import Resources

from loadmaster.report.text import Html, to_html

POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
"""What the browser may load: nothing from elsewhere. Bokeh compiles its own callbacks, hence the second script permission."""


@dataclass
class Page:
    """Collects charts while the markup around them is written."""

    plots: list[figure] = field(default_factory=list)

    def place(self, drawn: tuple[figure, str]) -> Html:
        """The element that will hold a chart, and under it what the chart leaves out."""
        plot, remark = drawn
        self.plots.append(plot)
        return Html(f"<div class=chart id={_element(len(self.plots) - 1)}></div>{hint(remark)}")


def in_page(title: str, description: str, sections: Sequence[Html], page: Page) -> str:
    """The whole file; the same sections and charts give the same text."""
    script = ""
    for code in Resources(mode="inline", components=["bokeh"], log_level="error").js_raw:
        script += f"<script>{code}</script>\n"
    return _PAGE.format(
        policy=POLICY,
        title=to_html(title),
        description=to_html(description),
        style=files("loadmaster.report").joinpath("page.css").read_text("utf-8"),
        sections="\n".join(sections),
        bokeh=script,
        charts=_in_script(_charts_json(page.plots)),
    )


def section(heading: str, *parts: Html) -> Html:
    """A heading, if there is one, and what is under it."""
    head = f"<h2>{to_html(heading)}</h2>" if heading else ""
    return Html(f"<section>{head}{''.join(parts)}</section>")


def hint(text: str) -> Html:
    """A remark in small print."""
    return Html(f"<p class=hint>{to_html(text)}</p>" if text else "")


def _element(index: int) -> str:
    return f"chart{index}"


def _charts_json(plots: Sequence[figure]) -> dict[str, Any]:
    """The charts as Bokeh's browser side takes them."""
    document = Document()
    for plot in plots:
        document.add_root(plot)
    names: dict[str, str] = {}
    models = _renumbered(document.to_json(deferred=False), names)
    roots = {names[plot.id]: _element(i) for i, plot in enumerate(plots)}
    item = {"docid": "plan", "roots": roots, "root_ids": list(roots)}
    return {"docs": {"plan": models}, "items": [item]}


def _renumbered(value: Any, names: dict[str, str]) -> Any:
    """The same models, numbered as they come; Bokeh's numbers also count all that the process has drawn before."""
    if isinstance(value, dict):
        return {k: names.setdefault(v, f"m{len(names)}") if k == "id" else _renumbered(v, names) for k, v in value.items()}
    return [_renumbered(item, names) for item in value] if isinstance(value, list | tuple) else value


def _in_script(data: object) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
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
{bokeh}<script type="application/json" id="data">{charts}</script>
<script>
const charts = JSON.parse(document.getElementById("data").textContent)
Bokeh.embed.embed_items(charts.docs, charts.items)
for (const button of document.querySelectorAll(".legend button"))
  button.addEventListener("click", () => {{
    const shapes = Bokeh.documents[0].get_model_by_name(button.dataset.shapes)
    shapes.visible = !shapes.visible
    button.setAttribute("aria-pressed", shapes.visible)
  }})
</script>
</body>
</html>
"""
