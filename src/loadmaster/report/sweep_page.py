"""The HTML page of a sweep: throughput over scratchpad and bandwidth, and its Pareto fronts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FactorRange, Range1d
from bokeh.plotting import figure

from loadmaster.core.units import format_bandwidth, format_bytes, format_joules, format_rate, format_seconds, rate_unit
from loadmaster.planning.sweep.design_space import DesignPoint, Sweep
from loadmaster.report.charts import FAINT, FONT, INK, framed, hover
from loadmaster.report.colours import PALETTE
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.page import Page, in_page, section
from loadmaster.report.sweep import COLUMNS, point_rows, remarks
from loadmaster.report.tables import table
from loadmaster.report.text import Html, printable, to_html

_ROW = 44
_LABELLED = 10
"""The most columns of the map with a figure in each cell."""
_LIGHT, _DARK = (0xED, 0xF4, 0xFA), (0x0B, 0x3C, 0x6F)


def render_sweep(sweep: Sweep) -> str:
    """Render the whole page; the same sweep gives the same text."""
    page = Page()
    notes = "".join(f"<li>{to_html(remark)}</li>" for remark in remarks(sweep))
    about = Html(f"<p><strong>{to_html(figures_rest_on(sweep.costs))}</strong></p><ul class=notes>{notes}</ul>")
    sections = [
        section("", about),
        section("Throughput over scratchpad and bandwidth", page.place(_draw_map(sweep))),
        section("What scratchpad is worth", page.place(_draw_fronts(sweep))),
        section("Points", table("Points", COLUMNS, point_rows(sweep))),
    ]
    title = f"{', '.join(map(printable, sweep.networks))} on {printable(sweep.target)}"
    return in_page(title, "What more scratchpad and more bandwidth would be worth", sections, page)


def _labels(values: Sequence[float], text: Callable[[float], str]) -> dict[float, str]:
    """Name an axis's values, all differently: rounded if rounded values still differ."""
    rounded = [text(each) for each in values]
    return {each: name if rounded.count(name) == 1 else f"{each:.17g}" for each, name in zip(values, rounded, strict=True)}


def _throughput(point: DesignPoint) -> float:
    return point.throughput or 0.0


def _draw_map(sweep: Sweep) -> tuple[figure, str]:
    """Draw a cell for each point, darker with more throughput, hatched where there is no plan."""
    sizes, rates = _labels(sweep.scratchpads, format_bytes), _labels(sweep.bandwidths, format_bandwidth)
    ranges = FactorRange(factors=list(sizes.values())), FactorRange(factors=list(rates.values()))
    plot = framed("", 90 + _ROW * len(rates), *ranges, "scratchpad", "bandwidth of main memory")
    plot.grid.visible = False
    top, unit = max(map(_throughput, sweep.points), default=0.0) or 1.0, rate_unit(sweep.precisions)

    def columns(points: Sequence[DesignPoint]) -> dict[str, list[str]]:
        return {
            "x": [sizes[p.scratchpad] for p in points],
            "y": [rates[p.bandwidth] for p in points],
            "name": [f"{sizes[p.scratchpad]}, {rates[p.bandwidth]}" for p in points],
            "throughput": [format_rate(_throughput(p), unit) for p in points],
            "makespan": [format_seconds(p.makespan or 0.0) for p in points],
            "energy": [format_joules(p.energy or 0.0) for p in points],
            "colour": [_shade(_throughput(p) / top) for p in points],
            "ink": [INK if _throughput(p) < 0.5 * top else "#ffffff" for p in points],
            "reason": [printable(p.reason) for p in points],
        }

    planned = ColumnDataSource(columns([p for p in sweep.points if p.planned]))
    cells = plot.rect("x", "y", 1, 1, source=planned, fill_color="colour", line_color="#ffffff")
    hover(plot, [cells], "name", (("throughput", "throughput"), ("makespan", "makespan"), ("energy", "energy")))
    if len(sizes) <= _LABELLED:
        text = plot.text("x", "y", text="throughput", source=planned, text_color="ink", text_align="center", text_baseline="middle")
        text.glyph.update(text_font=value(FONT), text_font_size=value("11px"))
    without = ColumnDataSource(columns([p for p in sweep.points if not p.planned]))
    hatched = plot.rect("x", "y", 1, 1, source=without, fill_color="#ffffff", line_color=FAINT, hatch_pattern="/", hatch_color=FAINT)
    hover(plot, [hatched], "name", (("no plan", "reason"),))
    return plot, "Hatched: no plan. White: not planned yet." if sweep.missing else "Hatched: no plan."


def _shade(share: float) -> str:
    return "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in zip(_LIGHT, _DARK, strict=True))


def _draw_fronts(sweep: Sweep) -> tuple[figure, str]:
    """Draw throughput against scratchpad, a line for each bandwidth; filled marks are its Pareto front, hollow ones dominated."""
    sizes, rates = _labels(sweep.scratchpads, format_bytes), _labels(sweep.bandwidths, format_bandwidth)
    top, unit = max(map(_throughput, sweep.points), default=0.0) or 1.0, rate_unit(sweep.precisions)
    scale, prefix = next((each for each in _PREFIXES if top >= each[0]), _PREFIXES[-1])
    y_range = Range1d(start=0, end=1.08 * top / scale)
    plot = framed("", 360, FactorRange(factors=list(sizes.values())), y_range, "scratchpad", f"throughput ({prefix}{unit})")
    for number, bandwidth in enumerate(sweep.bandwidths):
        points = [p for p in sweep.points if p.bandwidth == bandwidth and p.planned]
        front = sweep.front(bandwidth)
        colour = PALETTE[number % len(PALETTE)]
        data = {
            "x": [sizes[p.scratchpad] for p in points],
            "y": [_throughput(p) / scale for p in points],
            "fill": [colour if p in front else "#ffffff" for p in points],
            "name": [f"{sizes[p.scratchpad]}, {rates[bandwidth]}" for p in points],
            "throughput": [format_rate(_throughput(p), unit) for p in points],
            "pareto": ["on the front" if p in front else "dominated" for p in points],
        }
        source = ColumnDataSource(data)
        plot.line("x", "y", source=source, line_color=colour, line_width=1.5, legend_label=rates[bandwidth])
        marks = plot.scatter("x", "y", source=source, size=8, line_color=colour, fill_color="fill", legend_label=rates[bandwidth])
        hover(plot, [marks], "name", (("throughput", "throughput"), ("", "pareto")))
    if sweep.bandwidths:
        plot.legend.update(location="top_left", label_text_font=FONT, label_text_font_size="11px", background_fill_alpha=0.75)
        plot.add_layout(plot.legend[0], "right")
    return plot, "Filled: no smaller scratchpad has as much throughput at this bandwidth. Hollow: one has."


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))
