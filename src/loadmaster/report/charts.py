"""Describes the charts of a view to Bokeh's script: lanes, memory maps, curves and points.

Bokeh's own Python models of the same names take longer to import and to fill than the plan of a
small network; here a model is its name and the attributes that differ from the script's defaults,
of which theme.json has what all models of a name share.
Charts over time share one axis. Rectangles have the columns left, right, bottom, top, colour,
alpha and edge (opacity of the outline), and one column for each row of their tooltip.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from operator import attrgetter
from typing import Any

from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.report.colours import MERGED, colour, shade
from loadmaster.report.merging import MAX_SHAPES, near, neighbours
from loadmaster.report.text import (
    SIZES,
    chart_text,
    clipped,
    largest_unit,
    plural,
    printable,
)
from loadmaster.report.timeline import TimeUnit, first_free_lines, outline, time_unit
from loadmaster.report.view import (
    Axis,
    Chart,
    Curve,
    MemoryMap,
    Scatter,
    Shape,
    Timeline,
)

INK = "#1f2933"
FAINT = "#697586"
PAPER = "#ffffff"
CURVE = "#334e68"
CAPACITY = "#b42318"
_LEVELS = {
    "peak": (INK, "dashed"),
    "lower bound": ("#067647", "dotted"),
    "capacity": (CAPACITY, "solid"),
}
"""Colour and dash of the lines across a memory map."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
LANE_MARGIN = 0.12
OUTLINED = 0.015
"""Least height of a buffer with an outline, as a share of the map's; on a thinner one the outline
would hide the colour."""
NARROWEST = 520
"""Pixels of a chart's width where text stands in it; a narrower window scrolls it."""
MOST_GROUPS = 12
"""Groups that are named in a legend."""

_TIP = f"max-width:30em;overflow-wrap:anywhere;font:12px/1.45 {FONT};color:{INK}"
_TERM = f"color:{FAINT};padding-right:0.9em;vertical-align:top;white-space:nowrap"
_MERGED_GROUP = -2
_THEME: dict[str, dict[str, Any]] = json.loads(
    files("loadmaster.report").joinpath("theme.json").read_text("utf-8")
)
_SIDES = ("left", "right", "bottom", "top", "colour", "alpha", "edge")

Row = Mapping[str, Any]


class Model(dict[str, Any]):
    """A model of Bokeh's script: its type, and the attributes that the theme and callers give."""

    def __init__(self, kind: str, **attributes: Any) -> None:
        super().__init__(_THEME.get(kind, {}) | attributes)
        self.kind = kind


@dataclass(frozen=True)
class Canvas:
    """The time axis that charts share."""

    axis: Axis
    unit: TimeUnit
    x_range: Model
    cursor: Model


def canvas(axis: Axis) -> Canvas:
    """Make the time axis of a page; it can be moved and zoomed within its ends."""
    unit = TimeUnit("", 1.0, 0) if axis.label else time_unit(axis.scale)
    start, end = unit.of(axis.start), unit.of(axis.end)
    end = end if end > start else start + 1
    margin = 0.01 * (end - start)
    ends = start - margin, end + margin
    least = (end - start) / 1e7
    x_range = Model("Range1d", start=ends[0], end=ends[1], bounds=ends, min_interval=least)
    return Canvas(axis, unit, x_range, _rule("height", FAINT, "dotted", 1))


def legend_name(group: int) -> str:
    """Return the name of the shapes that the legend's button of a network hides."""
    return f"network {group}"


def draw(chart: Chart, on: Canvas) -> tuple[Model, str]:
    """Draw a chart; also return a sentence on what the chart leaves out, empty if nothing."""
    match chart:
        case Timeline():
            return _timeline(chart, on)
        case MemoryMap():
            return _map(chart, on)
        case Curve():
            return _curve(chart, on)
        case Scatter():
            return _scatter(chart)
    raise TypeError(chart)


def _timeline(chart: Timeline, on: Canvas) -> tuple[Model, str]:
    """Draw a lane for each name; the shortest neighbours are merged if there are too many."""
    shapes = sorted(chart.shapes, key=attrgetter("low", "start"))
    if chart.stacked and shapes:
        start = min(shape.start for shape in shapes)
        end = max(shape.end for shape in shapes)
        on = replace(on, x_range=canvas(Axis(end, on.axis.scale, start)).x_range)
        lines, count_of = first_free_lines((int(s.low), s.start, s.end) for s in shapes)
        for at, (shape, line) in enumerate(zip(shapes, lines, strict=True)):
            height = 1 / count_of[int(shape.low)]
            low = shape.low + line * height
            shapes[at] = replace(shape, low=low, high=low + height)
        shapes.sort(key=attrgetter("low", "start"))
    groups = neighbours(shapes, MAX_SHAPES)
    count = len(chart.lanes)
    height = 92 + count * max(16, min(40, 640 // max(1, count)))
    plot = _over_time(chart.title, height, on, _range(count, 0), "")
    plot["left"][0].update(
        ticker=Model("FixedTicker", ticks=[lane + 0.5 for lane in range(count)]),
        major_label_overrides={
            lane + 0.5: chart_text(clipped(name, 19)) for lane, name in enumerate(chart.lanes)
        },
        major_tick_line_color=None,
        axis_line_color=None,
    )
    plot["center"][1]["grid_line_color"] = None

    def columns(group: Sequence[Shape]) -> Row:
        margin = LANE_MARGIN * (group[0].high - group[0].low)
        place = {"bottom": group[0].low + margin, "top": group[0].high - margin}
        if len(group) == 1:
            return place
        return place | {"busy": format_seconds(sum(shape.end - shape.start for shape in group))}

    _rectangles(plot, on, groups, chart.noun, columns)
    return plot, _merged(groups, f"shortest {chart.noun}")


def _map(chart: MemoryMap, on: Canvas) -> tuple[Model, str]:
    """Draw address against time; the smallest buffers are merged if there are too many."""
    most = 1.08 * chart.top
    size, unit = largest_unit(most / 2.16, SIZES)
    levels = {f"{name} {format_bytes(n)}": (name, n) for name, n in chart.levels.items()}
    y_range = _range(0, most / size)
    title = f"{chart.title}: {', '.join(levels)}"
    plot = _over_time(title, 380, on, y_range, f"address ({unit})", box="both")
    groups = near(chart.shapes, MAX_SHAPES)

    def columns(group: Sequence[Shape]) -> Row:
        low = min(shape.low for shape in group)
        high = max(shape.high for shape in group)
        return {
            "bottom": low / size,
            "top": high / size,
            "edge": float(high - low >= OUTLINED * most),
            "size": format_bytes(sum(shape.high - shape.low for shape in group)),
            "address": f"{low:,} to {high:,}",
        }

    _rectangles(plot, on, groups, "buffers", columns)
    for text, (name, n) in levels.items():
        if n <= chart.top and (name == "peak" or n != chart.peak):
            below = name == "lower bound" or n > 0.88 * most
            crowded = any(0 < abs(n - other) < 0.05 * most for _, other in levels.values())
            # Where names would lie on one another the peak's is left out: the title has it.
            text = "" if name == "peak" and crowded else text
            _level(plot, n / size, text, *_LEVELS[name], below=below)
    return plot, _merged(groups, "smallest buffers (bytes x time)")


def _curve(chart: Curve, on: Canvas) -> tuple[Model, str]:
    """Draw an amount and its limit; the shortest steps are averaged if there are too many."""
    if chart.along:
        on = canvas(Axis(chart.shapes[-1].end, label=chart.along))
    shown = list(map(_mean, neighbours(chart.shapes, MAX_SHAPES)))
    top = 1.22 * max([chart.limit or 0.0, *(step.high for step in shown)]) or 1.0
    plot = _over_time(chart.title, 176, on, _range(0, top), chart.label)
    plot["left"][0]["ticker"] = Model("BasicTicker", desired_num_ticks=3)

    def columns(group: Sequence[Shape]) -> Row:
        name = f"{group[0].high:.4g}"
        return {"colour": CURVE, "alpha": 0.18, "edge": 0.0, "name": name}

    _rectangles(plot, on, [[step] for step in shown], "steps", columns, mode="vline")
    if shown:
        points = outline([(step.start, step.end, step.high) for step in shown])
        _glyph(plot, _points((on.unit.of(x), y) for x, y in points), "Step", line_color=CURVE)
    if chart.limit is not None:
        _level(plot, chart.limit, chart.limit_name, CAPACITY, "dashed")
    if len(shown) == len(chart.shapes):
        return plot, chart.remark
    count = plural(len(chart.shapes), "step")
    return plot, f"The curve has {count}; the shortest are averaged to {len(shown):,}."


def _mean(group: Sequence[Shape]) -> Shape:
    """Make one step of several, with their mean amount and the tooltip of the highest."""
    if len(group) == 1:
        return group[0]
    highest = max(group, key=attrgetter("high"))
    start, end = group[0].start, group[-1].end
    if end > start:
        mean = sum(step.high * (step.end - step.start) for step in group) / (end - start)
        highest = replace(highest, high=mean)
    return replace(highest, start=start, end=end)


def _scatter(chart: Scatter) -> tuple[Model, str]:
    marks = chart.marks
    points = [(m.x, m.y) for m in marks] + [point for path in chart.paths for point in path.points]
    points += [(points[0][0], chart.limit[0])] if chart.limit and points else []
    across = [x for x, _ in points] or [1.0]
    up = [y for _, y in points] or [1.0]
    if chart.logarithmic:
        x_range, y_range = (_range(min(at) / 1.5, 1.5 * max(at)) for at in (across, up))
    else:
        margin = 0.06 * (max(across) - min(across)) or 0.5 * abs(max(across)) or 1.0
        x_range = _range(max(0.0, min(across) - margin), max(across) + margin)
        y_range = _range(0, 1.08 * max(up))
    scale = "Log" if chart.logarithmic else "Linear"
    plot = _framed(chart.title, chart.height, (x_range, y_range), (chart.x, chart.y), scale)
    plot["min_width"] = NARROWEST
    for path in chart.paths:
        paint = INK if path.colour < 0 else colour(path.colour)
        _glyph(plot, _points(path.points), "Line", line_color=paint, line_dash=path.dash)
    legend = []
    for number in sorted({mark.colour for mark in marks}):
        paint = colour(number)
        mine = [mark for mark in marks if mark.colour == number]
        rows = [
            {
                "x": mark.x,
                "y": mark.y,
                "size": mark.size,
                "bound": mark.y if mark.bound is None else mark.bound,
                "fill": PAPER if mark.hollow else paint,
                "name": mark.name,
                **mark.facts,
            }
            for mark in mine
        ]
        source = _source(rows)
        if any(mark.bound is not None for mark in mine):
            _glyph(plot, source, "Segment", line_color=paint)
            _glyph(plot, source, "Scatter", line_color=paint, **_THEME["Bound"])
        drawn = _glyph(plot, source, "Scatter", line_color=paint)
        if 0 < len(chart.groups) <= MOST_GROUPS:
            label = chart_text(chart.groups[number])
            legend.append(Model("LegendItem", label=label, renderers=[drawn]))
        _hover(plot, drawn, list(mine[0].facts))
    if chart.limit:
        _level(plot, *chart.limit, INK, "dashed")
    if legend:
        plot["below"].append(Model("Legend", items=legend))
    return plot, chart.remark


def _framed(
    title: str,
    height: int,
    ranges: tuple[Model, Model],
    labels: tuple[str, str],
    scale: str = "Linear",
) -> Model:
    """Make an empty chart over any two axes, x first."""
    axes = [
        Model(f"{scale}Axis", axis_label=chart_text(label) or None, **_THEME["Axis"])
        for label in labels
    ]
    return Model(
        "Figure",
        title=Model("Title", text=chart_text(clipped(title, 120))),
        height=height,
        x_range=ranges[0],
        y_range=ranges[1],
        x_scale=Model(f"{scale}Scale"),
        y_scale=Model(f"{scale}Scale"),
        below=axes[:1],
        left=axes[1:],
        center=[Model("Grid", axis=axis, dimension=at) for at, axis in enumerate(axes)],
        renderers=[],
        toolbar=Model("Toolbar", tools=[]),
    )


def _range(start: float, end: float) -> Model:
    return Model("Range1d", start=start, end=end)


def _rule(dimension: str, paint: str, dash: str, width: float, **more: Any) -> Model:
    """Make a straight line across a chart."""
    return Model(
        "Span", dimension=dimension, line_color=paint, line_dash=dash, line_width=width, **more
    )


def _over_time(
    title: str, height: int, on: Canvas, y_range: Model, y_label: str, box: str = "width"
) -> Model:
    """Make an empty chart over the page's time axis. Drag pans, Ctrl and the wheel zoom (without
    Ctrl the wheel scrolls the page), and the toolbar zooms to a box (``box`` dimensions)."""
    label = on.axis.label or f"time ({on.unit.name})"
    plot = _framed(title, height, (on.x_range, y_range), (label, y_label))
    plot["toolbar_location"] = "above"
    plot["toolbar"]["tools"] += (
        Model("PanTool", dimensions="width"),
        Model("ResetTool"),
        Model("BoxZoomTool", dimensions=box),
        Model("WheelZoomTool", dimensions="width", modifiers={"ctrl": True}),
        Model("CrosshairTool", overlay=on.cursor, visible=False),
    )
    return plot


def _source(rows: Sequence[Row]) -> Model:
    """Make a column of each key; texts are made printable."""
    columns = {
        name: [printable(v) if isinstance(v := row[name], str) else v for row in rows]
        for name in rows[0]
    }
    return Model("ColumnDataSource", data=columns)


def _points(points: Iterable[tuple[float, float]]) -> Model:
    return _source([{"x": x, "y": y} for x, y in points])


def _glyph(plot: Model, source: Model, kind: str, **attributes: Any) -> Model:
    """Draw a shape for each row of the data; return what draws them."""
    drawn = Model("GlyphRenderer", data_source=source, glyph=Model(kind, **attributes))
    plot["renderers"].append(drawn)
    return drawn


def _rectangles(
    plot: Model,
    on: Canvas,
    groups: Iterable[Sequence[Shape]],
    noun: str,
    more: Callable[[Sequence[Shape]], Row],
    mode: str = "mouse",
) -> None:
    """Draw a rectangle for each group of shapes, grey where there are several, with ``more``
    columns; on a page with a legend, those of each network can be hidden."""
    networks = len(on.axis.groups) if mode == "mouse" else 0
    rows: dict[int, list[Row]] = defaultdict(list)
    for group in groups:
        first, alone = group[0], len(group) == 1
        start = min(shape.start for shape in group)
        end = max(shape.end for shape in group)
        number = first.colour if networks else min(first.colour, 0)
        row = {
            "left": on.unit.of(start),
            "right": on.unit.of(end),
            "colour": shade(colour(first.colour), first.tint) if alone else MERGED,
            "alpha": first.alpha,
            "edge": first.alpha,
            "bottom": first.low,
            "top": first.high,
            on.axis.label or "time": on.unit.span(start, end),
            "name": f"{len(group):,} {noun} merged",
        }
        tip = first.tip() if alone else {}
        rows[number if alone else _MERGED_GROUP].append({**row, **more(group), **tip})
    for number in sorted(rows, key=lambda each: (each != _MERGED_GROUP, each < 0, each)):
        mine = rows[number]
        drawn = _glyph(plot, _source(mine), "Quad")
        if 0 <= number < networks:
            drawn["name"] = legend_name(number)
        _hover(plot, drawn, [name for name in mine[0] if name not in _SIDES], mode)


def _merged(groups: Sequence[Sequence[Shape]], what: str) -> str:
    """Say how many shapes are drawn together."""
    several = [group for group in groups if len(group) > 1]
    if not several:
        return ""
    return (
        f"More than {MAX_SHAPES:,} rectangles would make this chart unusable: the"
        f" {sum(map(len, several)):,} {what} are drawn as"
        f" {plural(len(several), 'grey rectangle')}."
    )


def _hover(plot: Model, drawn: Model, labels: Sequence[str], mode: str = "mouse") -> None:
    """Show the column ``name`` and below it the other columns, one a line; the browser escapes
    their values."""
    lines = "".join(
        f'<tr><td style="{_TERM}">{label}</td><td>@{{{label}}}</td></tr>'
        for label in labels
        if label != "name"
    )
    tip = f'<div style="{_TIP}"><b>@name</b><table style="border-spacing:0">{lines}</table></div>'
    tool = Model("HoverTool", renderers=[drawn], tooltips=tip, mode=mode)
    plot["toolbar"]["tools"].append(tool)


def _level(plot: Model, at: float, text: str, paint: str, dash: str, below: bool = False) -> None:
    """Draw a horizontal line with its name at the left end of the frame."""
    name = Model(
        "Label",
        y=at,
        y_offset=-3 if below else 3,
        text=chart_text(text),
        text_color=paint,
        text_baseline="top" if below else "bottom",
    )
    plot["center"] += _rule("width", paint, dash, 1.25, location=at), name
