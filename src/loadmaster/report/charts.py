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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.report.colours import MERGED, colour, shade
from loadmaster.report.merging import MAX_SHAPES, merge_neighbours, split
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
    Timeline,
)

INK = "#1f2933"
FAINT = "#697586"
PAPER = "#ffffff"
CURVE = "#334e68"
CAPACITY, BOUND = "#b42318", "#067647"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
LANE_FILL = 0.76
TALL = 1.6
"""Ratio of capacity to peak above which the capacity is named in the title and has no line, which
would compress the map."""
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


def _row(
    on: Canvas,
    times: tuple[float, float],
    heights: tuple[float, float],
    paint: tuple[str, float, float],
    tip: Row,
) -> Row:
    """Make the columns of a rectangle; ``paint`` is its colour and the opacity of its area and of
    its outline."""
    left, right = map(on.unit.of, times)
    sides = zip(_SIDES, (left, right, *heights, *paint), strict=True)
    return {**dict(sides), on.axis.label or "time": on.unit.span(*times), **tip}


def _timeline(chart: Timeline, on: Canvas) -> tuple[Model, str]:
    """Draw a lane for each name; the shortest neighbours are merged if there are too many."""
    numbered = sorted(enumerate(chart.spans), key=lambda item: (item[1].lane, item[1].start))
    spans = [span for _, span in numbered]
    intervals = [(span.lane, span.start, span.end) for span in spans]
    lines, count_of = first_free_lines(intervals) if chart.stacked else ([0] * len(spans), {})
    if chart.stacked and spans:
        start, end = min(span.start for span in spans), max(span.end for span in spans)
        on = replace(on, x_range=canvas(Axis(end, on.axis.scale, start)).x_range)
    groups = merge_neighbours(intervals, MAX_SHAPES)
    rows, merged = [], 0
    for group in groups:
        mine = spans[group.start : group.stop]
        first, end = mine[0], max(span.end for span in mine)
        height = LANE_FILL / count_of.get(first.lane, 1)
        bottom = first.lane - LANE_FILL / 2 + height * lines[group.start]
        number, paint = first.colour, shade(colour(first.colour), first.tint)
        if len(group) == 1:
            alpha, tip = first.alpha, chart.tip(numbered[group.start][0])
        else:
            busy = format_seconds(sum(span.end - span.start for span in mine))
            tip = {"name": f"{len(group):,} {chart.noun} merged", "busy": busy}
            number, paint, alpha, merged = _MERGED_GROUP, MERGED, 1.0, merged + len(group)
        place = (first.start, end), (bottom, bottom + height)
        rows.append((number, _row(on, *place, (paint, alpha, alpha), tip)))
    count = len(chart.lanes)
    height = 92 + count * max(16, min(40, 640 // max(1, count)))
    plot = _over_time(chart.title, int(height), on, _range(count - 0.5, -0.5), "")
    plot["left"][0].update(
        ticker=Model("FixedTicker", ticks=list(range(count))),
        major_label_overrides={
            lane: chart_text(clipped(name, 19)) for lane, name in enumerate(chart.lanes)
        },
        major_tick_line_color=None,
        axis_line_color=None,
    )
    plot["center"][1]["grid_line_color"] = None
    _rectangles(plot, on, rows)
    if not merged:
        return plot, ""
    shapes = plural(len(groups) - len(spans) + merged, "grey rectangle")
    return plot, (
        f"More than {MAX_SHAPES:,} rectangles would make this chart unusable: the {merged:,}"
        f" shortest {chart.noun} are drawn as {shapes}."
    )


def _map(chart: MemoryMap, on: Canvas) -> tuple[Model, str]:
    """Draw address against time; the smallest buffers are merged if there are too many."""
    peak, bound, capacity = chart.peak, chart.bound, chart.capacity
    tall = capacity is None or capacity > TALL * max(1, peak)
    most = 1.08 * max(1, peak, 0 if tall else capacity or 0)
    size, unit = largest_unit(most / 2.16, SIZES)
    levels = (
        ("peak", peak, INK, "dashed"),
        ("lower bound", bound, BOUND, "dotted"),
        ("capacity", capacity, CAPACITY, "solid"),
    )
    known = [
        (f"{name} {format_bytes(n)}", n, tint, dash)
        for name, n, tint, dash in levels
        if n is not None
    ]
    title = f"{chart.title}: {', '.join(level[0] for level in known)}"
    y_range = _range(0, most / size)
    plot = _over_time(title, 380, on, y_range, f"address ({unit})", box="both")
    shown, small = split(chart.boxes, MAX_SHAPES)
    rows = []
    for group in [*small, *([i] for i in shown)]:
        boxes = [chart.boxes[i] for i in group]
        low, high = min(box.low for box in boxes), max(box.high for box in boxes)
        times = min(box.start for box in boxes), max(box.end for box in boxes)
        length = format_bytes(sum(box.high - box.low for box in boxes))
        tip = {"size": length, "address": f"{low:,} to {high:,}"}
        if len(group) == 1:
            number, edge = boxes[0].colour, float(high - low >= OUTLINED * most)
            paint, tip = (colour(number), boxes[0].alpha, edge), tip | chart.tip(group[0])
        else:
            number, paint = _MERGED_GROUP, (MERGED, 0.5, 1.0)
            tip |= {"name": f"{plural(len(group), 'buffer')} merged"}
        rows.append((number, _row(on, times, (low / size, high / size), paint, tip)))
    _rectangles(plot, on, rows)
    for text, n, tint, dash in known:
        is_bound = dash == "dotted"
        if (dash == "solid" and tall) or (is_bound and bound == peak):
            continue
        same = ", which is the lower bound" if dash == "dashed" and bound == peak else ""
        _level(plot, n / size, text + same, tint, dash, below=is_bound or n > 0.88 * most)
    if not small:
        return plot, ""
    return plot, (
        f"{chart.title} holds more than {MAX_SHAPES:,} buffers over time: the"
        f" {plural(sum(map(len, small)), 'smallest buffer')} (bytes x time) are drawn as"
        f" {plural(len(small), 'grey rectangle')} around them, behind the others."
    )


def _curve(chart: Curve, on: Canvas) -> tuple[Model, str]:
    """Draw an amount and its limit; the shortest steps are averaged if there are too many."""
    if chart.along:
        on = canvas(Axis(chart.steps[-1][1], label=chart.along))
    shown, rows = [], []
    for group in merge_neighbours([(0, start, end) for start, end, _ in chart.steps], MAX_SHAPES):
        mine = chart.steps[group.start : group.stop]
        (start, _, mean), end = mine[0], mine[-1][1]
        if len(mine) > 1 and end > start:
            mean = sum(value * (until - begin) for begin, until, value in mine) / (end - start)
        shown.append((start, end, mean))
        tip = {"name": f"{mean:.4g}"} if chart.tip is None else chart.tip(group)
        rows.append((0, _row(on, (start, end), (0, mean), (CURVE, 0.18, 0.0), tip)))
    top = 1.22 * max([chart.limit or 0.0, *(mean for *_, mean in shown)]) or 1.0
    plot = _over_time(chart.title, 176, on, _range(0, top), chart.label)
    plot["left"][0]["ticker"] = Model("BasicTicker", desired_num_ticks=3)
    _rectangles(plot, on, rows, mode="vline")
    if shown:
        curve = outline(shown)
        points = zip(map(on.unit.of, curve.times), curve.values, strict=True)
        _glyph(plot, _points(points), "Step", line_color=CURVE)
    if chart.limit is not None:
        _level(plot, chart.limit, chart.limit_name, CAPACITY, "dashed")
    if len(shown) == len(chart.steps):
        return plot, chart.remark
    count = plural(len(chart.steps), "step")
    return plot, f"The curve has {count}; the shortest are averaged to {len(shown):,}."


def _scatter(chart: Scatter) -> tuple[Model, str]:
    marks = chart.marks
    points = [(m.x, m.y) for m in marks] + [point for path in chart.paths for point in path.points]
    points += [(points[0][0], chart.limit[0])] if chart.limit and points else []
    across, up = [x for x, _ in points] or [1.0], [y for _, y in points] or [1.0]
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
        paint, mine = colour(number), [mark for mark in marks if mark.colour == number]
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
    plot: Model, on: Canvas, rows: Sequence[tuple[int, Row]], mode: str = "mouse"
) -> None:
    """Draw rectangles; on a page with a legend, those of each network can be hidden."""
    networks = len(on.axis.groups) if mode == "mouse" else 0
    groups: dict[int, list[Row]] = defaultdict(list)
    for number, row in rows:
        groups[number if networks else min(number, 0)].append(row)
    for number in sorted(groups, key=lambda each: (each != _MERGED_GROUP, each < 0, each)):
        mine = groups[number]
        drawn = _glyph(plot, _source(mine), "Quad")
        if 0 <= number < networks:
            drawn["name"] = legend_name(number)
        _hover(plot, drawn, [name for name in mine[0] if name not in _SIDES], mode)


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
