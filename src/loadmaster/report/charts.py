"""What all charts of the page share: one time axis, frames that line up, tools, tooltips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bokeh.models import ColumnDataSource, CrosshairTool, HoverTool, Range, Range1d, WheelZoomTool
from bokeh.models.annotations import Label, Span, Title
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report.colours import network_colours
from loadmaster.report.timeline import TimeUnit, last_instant, time_unit

INK = "#1f2933"
FAINT = "#697586"
GRID = "#e6e9ee"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
LEFT, RIGHT = 148, 18

_TIP = f"max-width:30em;overflow-wrap:anywhere;font:12px/1.45 {FONT};color:{INK}"
_TERM = f"color:{FAINT};padding-right:0.9em;vertical-align:top;white-space:nowrap"


@dataclass(frozen=True)
class Canvas:
    """The time axis that the charts share, the colours, and who draws which network (so that the legend can hide it everywhere)."""

    unit: TimeUnit
    x_range: Range1d
    cursor: Span
    colours: Mapping[str, str]
    drawn: dict[str, list[GlyphRenderer[Any]]] = field(default_factory=dict)


def canvas(plan: PlanRecord) -> Canvas:
    """A time axis from zero to the plan's end."""
    unit = time_unit(plan.metrics.makespan.value)
    end = unit.of(last_instant(plan)) or 1.0
    margin = 0.01 * end
    x_range = Range1d(start=-margin, end=end + margin, bounds=(-margin, end + margin), min_interval=end / 1e7)
    cursor = Span(dimension="height", line_color=FAINT, line_dash="dotted", line_width=1)
    return Canvas(unit, x_range, cursor, network_colours(plan))


def chart(on: Canvas, title: str, height: int, y_range: Range1d, y_label: str, box: str = "width") -> figure:
    """An empty chart: drag pans, Ctrl and the wheel zoom in time, the toolbar zooms to a box (``box`` ways) and resets."""
    plot = framed(title, height, on.x_range, y_range, f"time ({on.unit.name})", y_label, tools="xpan,reset")
    plot.add_tools(f"{'x' if box == 'width' else ''}box_zoom")
    plot.add_tools(_wheel(), CrosshairTool(overlay=on.cursor, visible=False))
    return plot


def framed(title: str, height: int, x_range: Range, y_range: Range, x_label: str, y_label: str, tools: str = "") -> figure:
    """An empty chart over any two axes."""
    plot = figure(
        title=Title(text=title, text_font=FONT, text_font_size="14px", text_color=INK),
        height=height,
        x_range=x_range,
        y_range=y_range,
        x_axis_label=x_label,
        y_axis_label=y_label or None,
        sizing_mode="stretch_width",
        min_border_left=LEFT,
        min_border_right=RIGHT,
        toolbar_location="above" if tools else None,
        tools=tools,
        lod_threshold=None,
    )
    _style(plot)
    return plot


def _wheel() -> WheelZoomTool:
    """Zoom with Ctrl held only: the charts are as wide as the page, which could otherwise not be scrolled past them."""
    return WheelZoomTool(dimensions="width", modifiers="ctrl")


def _style(plot: figure) -> None:
    plot.toolbar.logo = None
    plot.outline_line_color = None
    plot.background_fill_color = "#ffffff"
    for axis in plot.axis:
        axis.update(
            axis_label_text_font=FONT,
            axis_label_text_font_style="normal",
            axis_label_text_font_size="12px",
            axis_label_text_color=FAINT,
            major_label_text_font=FONT,
            major_label_text_font_size="12px",
            major_label_text_color=INK,
            axis_line_color=FAINT,
            major_tick_line_color=FAINT,
            minor_tick_line_color=None,
        )
    plot.grid.grid_line_color = GRID


def hover(
    plot: figure,
    renderers: Sequence[GlyphRenderer[Any]],
    title: str,
    rows: Sequence[tuple[str, str]],
    mode: Literal["mouse", "vline"] = "mouse",
) -> None:
    """Show column ``title`` and, one to a line, the columns of ``rows``; their values are escaped in the browser."""
    lines = "".join(f'<tr><td style="{_TERM}">{name}</td><td>@{column}</td></tr>' for name, column in rows)
    tip = f'<div style="{_TIP}"><b>@{title}</b><table style="border-spacing:0">{lines}</table></div>'
    plot.add_tools(HoverTool(renderers=list(renderers), tooltips=tip, mode=mode, visible=False, point_policy="follow_mouse"))


def rectangles(
    plot: figure, data: Mapping[str, Sequence[object]], colour: str, alpha: float | str = 1.0, edge: float | str = 1.0
) -> GlyphRenderer[Any]:
    """Rectangles between the columns left, right, top and bottom; ``alpha`` and ``edge`` say how opaque they and their outlines are."""
    return plot.quad(
        source=ColumnDataSource(dict(data)),
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        fill_color=colour,
        fill_alpha=alpha,
        line_color=colour,
        line_alpha=edge,
        line_width=0.75,
    )


def level(plot: figure, value: float, text: str, colour: str, dash: str, below: bool = False) -> None:
    """A horizontal line with its name at the left end of the frame."""
    plot.add_layout(Span(location=value, dimension="width", line_color=colour, line_dash=dash, line_width=1.25))
    label = Label(
        x=6,
        y=value,
        x_units="screen",
        y_offset=-3 if below else 3,
        text=text,
        text_font=FONT,
        text_font_size="11px",
        text_color=colour,
        text_baseline="top" if below else "bottom",
        background_fill_color="#ffffff",
        background_fill_alpha=0.75,
    )
    plot.add_layout(label)
