"""Parts that all charts of a page share: one time axis, frames of equal width, tools, tooltips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bokeh.core.serialization import Serializer
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


class Column(list[object]):
    """A column of a chart's data that goes into the page as it is, of finite numbers and texts:
    Bokeh would look at every one of them."""


Serializer.register(Column, lambda column, _: column)


def columns(data: Mapping[str, Sequence[object]]) -> ColumnDataSource:
    """The source of many shapes."""
    return ColumnDataSource({name: Column(values) for name, values in data.items()})


@dataclass(frozen=True)
class Canvas:
    """The charts' common time axis and colours, and the shapes of each network (so that the legend
    can hide them everywhere)."""

    unit: TimeUnit
    x_range: Range1d
    cursor: Span
    colours: Mapping[str, str]
    drawn: dict[str, list[GlyphRenderer[Any]]] = field(default_factory=dict)


def canvas(plan: PlanRecord) -> Canvas:
    """Make a time axis from zero to the plan's end."""
    return time_canvas(plan.metrics.makespan.value, last_instant(plan), network_colours(plan))


def time_canvas(seconds: float, end: float, colours: Mapping[str, str]) -> Canvas:
    """Make a time axis from zero to ``end``, in the unit that suits ``seconds``."""
    unit = time_unit(seconds)
    return Canvas(unit, wide_range(0.0, unit.of(end) or 1.0), cursor(), colours)


def wide_range(start: float, end: float) -> Range1d:
    """Make an axis that can be moved and zoomed within its ends, with a margin."""
    margin = 0.01 * (end - start)
    return Range1d(
        start=start - margin,
        end=end + margin,
        bounds=(start - margin, end + margin),
        min_interval=(end - start) / 1e7,
    )


def cursor() -> Span:
    """Make the line under the mouse that charts over one axis share."""
    return Span(dimension="height", line_color=FAINT, line_dash="dotted", line_width=1)


def chart(
    on: Canvas, title: str, height: int, y_range: Range1d, y_label: str, box: str = "width"
) -> figure:
    """Make an empty chart over time that moves with the others: see :func:`movable`."""
    plot = framed(
        title, height, on.x_range, y_range, f"time ({on.unit.name})", y_label, tools="xpan,reset"
    )
    movable(plot, on.cursor, box)
    return plot


def movable(plot: figure, line: Span, box: str = "width") -> None:
    """Have Ctrl and the wheel zoom along the x axis, and the toolbar zoom to a box (``box``
    dimensions); drag pans by itself."""
    plot.add_tools(f"{'x' if box == 'width' else ''}box_zoom")
    plot.add_tools(_wheel(), CrosshairTool(overlay=line, visible=False))


def framed(
    title: str,
    height: int,
    x_range: Range,
    y_range: Range,
    x_label: str,
    y_label: str,
    tools: str = "",
    **more: Any,
) -> figure:
    """Make an empty chart over any two axes; ``more`` is for Bokeh's figure."""
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
        **more,
    )
    _style(plot)
    return plot


def _wheel() -> WheelZoomTool:
    """Make a tool that zooms with Ctrl only: the charts are as wide as the page, and the wheel must
    scroll it."""
    return WheelZoomTool(dimensions="width", modifiers="ctrl")


def _style(plot: figure) -> None:
    plot.toolbar.logo = None
    plot.outline_line_color = None
    plot.background_fill_color = plot.border_fill_color = None
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
    """Show column ``title`` and, one to a line, the columns of ``rows``; their values are escaped
    in the browser."""
    lines = "".join(
        f'<tr><td style="{_TERM}">{name}</td><td>@{column}</td></tr>' for name, column in rows
    )
    tip = (
        f'<div style="{_TIP}"><b>@{title}</b><table style="border-spacing:0">{lines}</table></div>'
    )
    plot.add_tools(
        HoverTool(
            renderers=list(renderers),
            tooltips=tip,
            mode=mode,
            visible=False,
            point_policy="follow_mouse",
        )
    )


def rectangles(
    plot: figure,
    data: Mapping[str, Sequence[object]],
    colour: str,
    alpha: float | str = 1.0,
    edge: float | str = 1.0,
) -> GlyphRenderer[Any]:
    """Draw rectangles between the columns left, right, top and bottom; ``alpha`` and ``edge`` are
    the opacity of areas and outlines."""
    return plot.quad(
        source=columns(data),
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


def level(
    plot: figure, value: float, text: str, colour: str, dash: str, below: bool = False
) -> None:
    """Draw a horizontal line with its name at the left end of the frame."""
    plot.add_layout(
        Span(location=value, dimension="width", line_color=colour, line_dash=dash, line_width=1.25)
    )
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
