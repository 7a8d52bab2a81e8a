"""Describes the charts of a view as models of Bokeh's script: lanes, memory maps, curves and
points.

Bokeh's own Python models would take longer to import and to fill than planning a small network.
Here a model is its name and the attributes that differ from the script's defaults; theme.json has
the attributes that all models of a name share.
Charts over time share one axis. Rectangles have the columns left, right, bottom, top, colour,
alpha and edge (opacity of the outline), and one column for each row of their tooltip.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from loadmaster.core.units import SIZES, format_bytes, format_seconds, largest_unit
from loadmaster.report.colours import MERGED, colour, shade
from loadmaster.report.merging import around, band_of, neighbours
from loadmaster.report.text import chart_text, clipped, plural, printable
from loadmaster.report.timeline import TimeUnit, outline, time_unit
from loadmaster.report.view import Chart, Curve, MemoryMap, Scatter, Shape, TimeAxis, TimelineChart

INK = "#1f2933"
FAINT = "#697586"
PAPER = "#ffffff"
CURVE = "#334e68"
CAPACITY = "#b42318"
_LEVELS = {
    "peak": (INK, "dashed", 6),
    "lower bound": ("#067647", "dotted", 110),
    "capacity": (CAPACITY, "solid", 250),
}
"""Colour, dash and position of the name of each horizontal line of a memory map; names of lines at
the same height stand beside one another."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
MAX_SHAPES = 3_000
"""Most rectangles of one chart; a screen has only a few thousand columns."""
LANE_MARGIN = 0.12
OUTLINED = 0.015
"""Least height of a buffer with an outline, as a share of the map's height; the outline would hide
the colour of thinner ones."""
NARROWEST = 520
"""Least width in pixels of a chart with text; a narrower window scrolls it."""
MOST_GROUPS = 12
"""Most groups of a legend."""

_TIP = f"max-width:30em;overflow-wrap:anywhere;font:12px/1.45 {FONT};color:{INK}"
_TERM = f"color:{FAINT};padding-right:0.9em;vertical-align:top;white-space:nowrap"
_MERGED_GROUP = -2
_UNTOLD = ("left", "right", "bottom", "top", "colour", "alpha", "edge", "name")
"""Columns of rectangles that are no row of their tooltip."""


def read_file(name: str) -> str:
    """Return the text of a file of this package."""
    return files("loadmaster.report").joinpath(name).read_text("utf-8")


_THEME: dict[str, dict[str, Any]] = json.loads(read_file("theme.json"))

Row = Mapping[str, Any]


class BokehModel(dict[str, Any]):
    """A model of Bokeh's script: its type, and its attributes from the theme and from callers."""

    def __init__(self, kind: str, **attributes: Any) -> None:
        super().__init__(_THEME.get(kind, {}) | attributes)
        self.kind = kind


@dataclass(frozen=True)
class Canvas:
    """The time axis that charts share."""

    axis: TimeAxis
    unit: TimeUnit
    x_range: BokehModel
    cursor: BokehModel


def canvas(axis: TimeAxis) -> Canvas:
    """Make the time axis of a page, which can be panned and zoomed within its ends."""
    unit = TimeUnit("", 1.0, 0) if axis.label else time_unit(axis.scale)
    start, end = unit.of(axis.start), unit.of(axis.end)
    end = end if end > start else start + 1
    margin = 0.01 * (end - start)
    ends, least = (start - margin, end + margin), (end - start) / 1e7
    x_range = BokehModel("Range1d", start=ends[0], end=ends[1], bounds=ends, min_interval=least)
    cursor = BokehModel("Span", dimension="height", line_color=FAINT, line_dash="dotted")
    return Canvas(axis, unit, x_range, cursor)


def legend_name(group: int) -> str:
    """Return the name in Bokeh of the shapes of a group, by which the legend hides them."""
    return f"network {group}"


def draw(chart: Chart, on: Canvas) -> tuple[BokehModel, str]:
    """Return the model of a chart, and its remark with a sentence on merged shapes, if any."""
    on = canvas(chart.axis) if chart.axis else on
    said = ""
    match chart:
        case TimelineChart():
            plot, said = _timeline(chart, on)
        case MemoryMap():
            plot, said = _map(chart, on)
        case Curve():
            plot, said = _curve(chart, on)
        case Scatter():
            plot = _scatter(chart)
        case _:
            raise TypeError(chart)
    return plot, " ".join(filter(None, (chart.remark, said)))


def _timeline(chart: TimelineChart, on: Canvas) -> tuple[BokehModel, str]:
    """Draw a lane for each name; the shortest neighbours are merged if there are too many."""
    count = len(chart.lanes)
    height = 92 + count * max(16, min(40, 640 // max(1, count)))
    plot = _over_time(chart.title, height, on, (count, 0), "")
    plot["left"][0].update(
        _THEME["Lanes"],
        ticker=BokehModel("FixedTicker", ticks=[lane + 0.5 for lane in range(count)]),
        major_label_overrides={
            lane + 0.5: chart_text(clipped(name, 19)) for lane, name in enumerate(chart.lanes)
        },
    )
    plot["center"][1]["grid_line_color"] = None

    def columns(shape: Shape, group: Sequence[Shape]) -> Row:
        """Return the row of a job, or of merged jobs with the sum of their seconds."""
        margin = LANE_MARGIN * (shape.high - shape.low)
        place = {"bottom": shape.low + margin, "top": shape.high - margin}
        if len(group) == 1:
            return place
        return place | {"busy": format_seconds(sum(shape.end - shape.start for shape in group))}

    return plot, _add_rectangles(plot, on, neighbours(chart.shapes, MAX_SHAPES), columns)


def _map(chart: MemoryMap, on: Canvas) -> tuple[BokehModel, str]:
    """Draw address against time; buffers of the shortest life are merged with those near them if
    there are too many."""
    most = 1.08 * chart.top
    size, unit = largest_unit(most / 2.16, SIZES)
    title = f"{chart.title}: {chart.sizes}"
    plot = _over_time(title, 380, on, (0, most / size), f"address ({unit})", box="both")

    def columns(shape: Shape, group: Sequence[Shape]) -> Row:
        """Return the row of a buffer: its addresses and the bytes of merged ones."""
        return {
            "bottom": shape.low / size,
            "top": shape.high / size,
            "edge": float(shape.high - shape.low >= OUTLINED * most),
            "size": format_bytes(sum(shape.high - shape.low for shape in group)),
            "address": f"{shape.low:,} to {shape.high:,}",
        }

    groups = neighbours(chart.shapes, MAX_SHAPES, band_of(chart))
    said = _add_rectangles(plot, on, groups, columns)
    for name, n in reversed(chart.levels.items()):
        if n <= chart.top:
            _draw_level(plot, n / size, f"{name} {format_bytes(n)}", *_LEVELS[name])
    return plot, said


def _curve(chart: Curve, on: Canvas) -> tuple[BokehModel, str]:
    """Draw an amount and its limit; the shortest steps are averaged if there are too many."""
    shown = list(map(_mean_step, neighbours(chart.shapes, MAX_SHAPES)))
    limit, name = chart.limit or (0.0, "")
    most = max([limit, *(step.high for step in shown)])
    size, unit = largest_unit(most, chart.units)
    heights = 0, 1.22 * most / size or 1.0
    plot = _over_time(chart.title, 176, on, heights, f"{chart.label}{unit and f' ({unit})'}")
    plot["left"][0]["ticker"] = BokehModel("BasicTicker")

    def columns(step: Shape, _: Sequence[Shape]) -> Row:
        """Return the row of one step of the curve."""
        return {
            "colour": CURVE,
            "alpha": 0.18,
            "edge": 0.0,
            "top": step.high / size,
            "name": f"{step.high / size:.4g} {unit}".rstrip(),
        }

    _add_rectangles(plot, on, [[step] for step in shown], columns, mode="vline")
    if shown:
        points = outline([(step.start, step.end, step.high / size) for step in shown])
        _add_glyph(plot, _point_source((on.unit.of(x), y) for x, y in points), "Step")
    if chart.limit:
        _draw_level(plot, limit / size, name, CAPACITY, "dashed")
    if len(shown) == len(chart.shapes):
        return plot, ""
    return plot, (
        f"The curve has {plural(len(chart.shapes), 'step')}; the shortest are averaged to"
        f" {len(shown):,}."
    )


def _mean_step(group: Sequence[Shape]) -> Shape:
    """Return one step for several, with their mean amount and the tooltip of the longest."""
    step = around(group)
    if step.end <= step.start:
        return step
    total = sum(each.high * (each.end - each.start) for each in group)
    return replace(step, high=total / (step.end - step.start))


def _scatter(chart: Scatter) -> BokehModel:
    """Draw points, lines and the limit; a point with a bound has a bar down to it."""
    marks = chart.marks
    labels, sizes = [], []
    for label, units, side in zip((chart.x, chart.y), chart.units, ("x", "y"), strict=True):
        size, unit = largest_unit(max((getattr(mark, side) for mark in marks), default=1.0), units)
        labels.append(f"{label}{unit and f' ({unit})'}")
        sizes.append(size)
    x_size, y_size = sizes
    ranges = BokehModel("DataRange1d"), BokehModel("DataRange1d")
    if not chart.logarithmic:
        ranges[1]["start"] = 0
    scale = "Log" if chart.logarithmic else "Linear"
    plot = _empty_chart(chart.title, 360, ranges, labels, scale)
    plot["min_width"] = NARROWEST
    for path in chart.paths:
        paint = INK if path.colour < 0 else colour(path.colour)
        line = _point_source((x / x_size, y / y_size) for x, y in path.points)
        _add_glyph(plot, line, "Line", line_color=paint, line_dash=path.dash)
    rows = [
        {
            "x": mark.x / x_size,
            "y": mark.y / y_size,
            "size": mark.size,
            "bound": (mark.y if mark.bound is None else mark.bound) / y_size,
            "colour": colour(mark.colour),
            "fill": PAPER if mark.hollow else colour(mark.colour),
            "group": chart_text(chart.groups[mark.colour]) if chart.groups else "",
            "name": mark.name,
            **mark.facts,
        }
        for mark in marks
    ]
    if rows:
        source = _source(rows)
        _add_glyph(plot, source, "Segment")
        drawn = _add_glyph(plot, source, "Scatter")
        _add_hover(plot, drawn, list(marks[0].facts))
        if 0 < len(chart.groups) <= MOST_GROUPS:
            items = [BokehModel("LegendItem", renderers=[drawn])]
            plot["below"].append(BokehModel("Legend", items=items))
    if chart.limit and marks:
        level = chart.limit[0] / y_size
        _draw_level(plot, level, chart.limit[1], INK, "dashed")
        # Bokeh derives the range from data sources, which do not include levels.
        _add_glyph(plot, _point_source([(marks[0].x / x_size, 1.1 * level)]), "Line")
    return plot


def _empty_chart(
    title: str,
    height: int,
    ranges: Sequence[BokehModel],
    labels: Sequence[str],
    scale: str = "Linear",
) -> BokehModel:
    """Make an empty chart over any two axes, x first."""
    axes = [
        BokehModel(f"{scale}Axis", axis_label=chart_text(label) or None, **_THEME["Axis"])
        for label in labels
    ]
    return BokehModel(
        "Figure",
        title=BokehModel("Title", text=chart_text(clipped(title, 120))),
        height=height,
        x_range=ranges[0],
        y_range=ranges[1],
        x_scale=BokehModel(f"{scale}Scale"),
        y_scale=BokehModel(f"{scale}Scale"),
        below=axes[:1],
        left=axes[1:],
        center=[BokehModel("Grid", axis=axis, dimension=at) for at, axis in enumerate(axes)],
        renderers=[],
        toolbar=BokehModel("Toolbar", tools=[]),
    )


def _over_time(
    title: str,
    height: int,
    on: Canvas,
    heights: tuple[float, float],
    y_label: str,
    box: str = "width",
) -> BokehModel:
    """Make an empty chart over the page's time axis, with fixed ``heights`` of its lower and upper
    end. Drag pans, Ctrl and the wheel zoom (without Ctrl the wheel scrolls the page), and the
    toolbar zooms to a box (``box`` dimensions)."""
    label = on.axis.label or f"time ({on.unit.name})"
    y_range = BokehModel("Range1d", start=heights[0], end=heights[1])
    plot = _empty_chart(title, height, (on.x_range, y_range), (label, y_label))
    plot["toolbar_location"] = "above"
    plot["toolbar"]["tools"] += (
        BokehModel("PanTool"),
        BokehModel("ResetTool"),
        BokehModel("BoxZoomTool", dimensions=box),
        BokehModel("WheelZoomTool"),
        BokehModel("CrosshairTool", overlay=on.cursor),
    )
    return plot


def _source(rows: Sequence[Row]) -> BokehModel:
    """Make a data source with a column for each key; texts are made printable."""
    columns = {
        name: [printable(v) if isinstance(v := row[name], str) else v for row in rows]
        for name in rows[0]
    }
    return BokehModel("ColumnDataSource", data=columns)


def _point_source(points: Iterable[tuple[float, float]]) -> BokehModel:
    """Make a data source of points."""
    return _source([{"x": x, "y": y} for x, y in points])


def _add_glyph(plot: BokehModel, source: BokehModel, kind: str, **attributes: Any) -> BokehModel:
    """Add a glyph for each row of the source to a plot, and return its renderer."""
    drawn = BokehModel("GlyphRenderer", data_source=source, glyph=BokehModel(kind, **attributes))
    plot["renderers"].append(drawn)
    return drawn


def _add_rectangles(
    plot: BokehModel,
    on: Canvas,
    groups: Iterable[Sequence[Shape]],
    more: Callable[[Shape, Sequence[Shape]], Row],
    mode: str = "mouse",
) -> str:
    """Draw a rectangle for each group of shapes, grey for merged ones, with ``more`` columns. On a
    page with a legend, those of each network can be hidden. Returns a sentence on the number of
    merged shapes, if any."""
    networks = len(on.axis.groups) if mode == "mouse" else 0
    rows: dict[int, list[Row]] = defaultdict(list)
    merged = 0
    for group in groups:
        shape, alone = around(group), len(group) == 1
        merged += 0 if alone else len(group)
        number = shape.colour if networks else min(shape.colour, 0)
        row = {
            "left": on.unit.of(shape.start),
            "right": on.unit.of(shape.end),
            "colour": shade(colour(shape.colour), shape.tint) if alone else MERGED,
            "alpha": shape.alpha,
            "edge": shape.alpha,
            "bottom": shape.low,
            "top": shape.high,
            on.axis.label or "time": on.unit.span(shape.start, shape.end),
            "name": f"{len(group):,} merged",
        }
        tip = shape.tip() if alone else {}
        rows[number if alone else _MERGED_GROUP].append({**row, **more(shape, group), **tip})
    for number in sorted(rows):
        mine = rows[number]
        drawn = _add_glyph(plot, _source(mine), "Quad")
        if 0 <= number < networks:
            drawn["name"] = legend_name(number)
        _add_hover(plot, drawn, [name for name in mine[0] if name not in _UNTOLD], mode)
    if not merged:
        return ""
    return (
        f"More than {MAX_SHAPES:,} rectangles would make this chart unusable: the {merged:,}"
        f" shortest are drawn as {plural(len(rows[_MERGED_GROUP]), 'grey rectangle')}."
    )


def _add_hover(
    plot: BokehModel, drawn: BokehModel, labels: Sequence[str], mode: str = "mouse"
) -> None:
    """Show the column ``name`` and below it the columns ``labels``, one a line; the browser escapes
    their values."""
    lines = "".join(
        f'<tr><td style="{_TERM}">{label}</td><td>@{{{label}}}</td></tr>' for label in labels
    )
    tip = f'<div style="{_TIP}"><b>@name</b><table style="border-spacing:0">{lines}</table></div>'
    tool = BokehModel("HoverTool", renderers=[drawn], tooltips=tip, mode=mode)
    plot["toolbar"]["tools"].append(tool)


def _draw_level(plot: BokehModel, at: float, text: str, paint: str, dash: str, x: int = 6) -> None:
    """Draw a horizontal line with its name above it, ``x`` pixels from the left."""
    line = BokehModel("Span", location=at, line_color=paint, line_dash=dash)
    plot["center"] += line, BokehModel("Label", x=x, y=at, text=chart_text(text), text_color=paint)
