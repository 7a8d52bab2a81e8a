"""Charts of each memory link's bandwidth over time, with its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bokeh.models import BasicTicker, Range1d
from bokeh.plotting import figure

from loadmaster.core.units import format_bandwidth
from loadmaster.planning.plan_records import LinkSegment, PlanRecord
from loadmaster.report.charts import Canvas, chart, columns, hover, level
from loadmaster.report.merging import MAX_SHAPES, merge_neighbours
from loadmaster.report.text import chart_text, clipped, percent, plural
from loadmaster.report.timeline import outline
from loadmaster.targets.hardware import Memory

CURVE = "#334e68"
LIMIT = "#b42318"
_UNITS = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))


@dataclass(frozen=True)
class Measure:
    """The quantity on the y axis: the rate, or the load where reading and writing have limits of
    their own."""

    label: str
    limit: float
    limit_text: str
    scale: float
    by_load: bool

    def of(self, segment: LinkSegment) -> float:
        """Return the height of a segment in this measure."""
        return (segment.load if self.by_load else segment.bytes_per_second) / self.scale


def measure(memory: Memory) -> Measure:
    """Choose the unit in which the memory's limit is at least one."""
    if memory.read_bandwidth != memory.write_bandwidth:
        return Measure("load (%)", 100.0, "all of the link's time", 0.01, True)
    return _rate(memory.read_bandwidth)


def _rate(limit: float) -> Measure:
    scale, name = next(((s, n) for s, n in _UNITS if limit >= s), _UNITS[-1])
    return Measure(
        f"traffic ({name})", limit / scale, f"limit {format_bandwidth(limit)}", scale, False
    )


def averaged(segments: Sequence[LinkSegment], limit: int) -> list[LinkSegment]:
    """Reduce to at most ``limit`` segments; merged neighbours show their mean."""
    groups = merge_neighbours(
        [0] * len(segments), [s.start for s in segments], [s.end for s in segments], limit
    )
    return [_mean(segments[g.start : g.stop]) for g in groups]


def _mean(parts: Sequence[LinkSegment]) -> LinkSegment:
    start, end = parts[0].start, parts[-1].end
    if len(parts) == 1 or end <= start:
        return parts[0]
    rate = sum(p.bytes_per_second * (p.end - p.start) for p in parts) / (end - start)
    return LinkSegment(
        start, end, rate, sum(p.load * (p.end - p.start) for p in parts) / (end - start)
    )


def draw_link(plan: PlanRecord, memory: Memory, on: Canvas) -> tuple[figure, str]:
    """Draw the curve of one link; also return a sentence on what was averaged in it (empty if
    nothing was)."""
    return _draw(
        f"Link to {chart_text(clipped(memory.name, 40))}",
        plan.links.get(memory.name, ()),
        measure(memory),
        on,
    )


def draw_segments(
    title: str, segments: Sequence[LinkSegment], limit: float, on: Canvas
) -> tuple[figure, str]:
    """Draw a bandwidth over time with its limit in bytes/s; also return a sentence on what was
    averaged in it."""
    return _draw(title, segments, _rate(limit), on)


def _draw(
    title: str, segments: Sequence[LinkSegment], scale: Measure, on: Canvas
) -> tuple[figure, str]:
    shown = averaged(segments, MAX_SHAPES)
    top = max([scale.limit, *map(scale.of, shown)])
    plot = chart(on, title, 176, Range1d(start=0, end=1.22 * top), scale.label)
    plot.yaxis.ticker = BasicTicker(desired_num_ticks=3)
    _draw_curve(plot, on, shown, scale)
    level(plot, scale.limit, scale.limit_text, LIMIT, "dashed")
    if len(shown) == len(segments):
        return plot, ""
    return (
        plot,
        (
            f"The curve has {plural(len(segments), 'step')}; the shortest are averaged to"
            f" {len(shown):,}."
        ),
    )


def _draw_curve(plot: figure, on: Canvas, shown: Sequence[LinkSegment], scale: Measure) -> None:
    unit = on.unit
    data: dict[str, Sequence[object]] = {
        "left": [unit.of(s.start) for s in shown],
        "right": [unit.of(s.end) for s in shown],
        "top": [scale.of(s) for s in shown],
        "time": [unit.span(s.start, s.end) for s in shown],
        "rate": [format_bandwidth(s.bytes_per_second) for s in shown],
        "load": [percent(s.load) for s in shown],
    }
    area = plot.quad(
        source=columns(data),
        left="left",
        right="right",
        top="top",
        bottom=0,
        fill_color=CURVE,
        fill_alpha=0.18,
        line_color=None,
    )
    curve = outline(shown, scale.of)
    steps = columns({"x": [unit.of(t) for t in curve.times], "y": curve.values})
    plot.step("x", "y", source=steps, mode="after", line_color=CURVE, line_width=1.25)
    hover(plot, [area], "rate", (("time", "time"), ("load", "load")), mode="vline")
