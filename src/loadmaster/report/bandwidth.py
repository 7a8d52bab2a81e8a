"""How busy each memory's link is over time, with its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bokeh.models import BasicTicker, ColumnDataSource, Range1d
from bokeh.plotting import figure

from loadmaster.core.units import format_bandwidth
from loadmaster.planning.plan_records import LinkSegment, PlanRecord
from loadmaster.report.charts import Canvas, chart, hover, level
from loadmaster.report.merging import MAX_SHAPES, merge_neighbours
from loadmaster.report.text import chart_text, clipped, percent, plural, printable
from loadmaster.report.timeline import outline
from loadmaster.targets.hardware import Memory

CURVE = "#334e68"
LIMIT = "#b42318"
_UNITS = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))


@dataclass(frozen=True)
class Measure:
    """What the y axis shows: the rate, or the load where reading and writing have limits of their own."""

    label: str
    limit: float
    limit_text: str
    scale: float
    by_load: bool

    def of(self, segment: LinkSegment) -> float:
        """Height of a segment."""
        return (segment.load if self.by_load else segment.bytes_per_second) / self.scale


def measure(memory: Memory) -> Measure:
    """A unit in which the limit is at least one."""
    if memory.read_bandwidth != memory.write_bandwidth:
        return Measure("load (%)", 100.0, "all of the link's time", 0.01, True)
    limit = memory.read_bandwidth
    scale, name = next(((s, n) for s, n in _UNITS if limit >= s), _UNITS[-1])
    return Measure(f"traffic ({name})", limit / scale, f"limit {format_bandwidth(limit)}", scale, False)


def averaged(segments: Sequence[LinkSegment], limit: int) -> list[LinkSegment]:
    """At most ``limit`` segments; neighbours that are merged show their mean."""
    groups = merge_neighbours([0] * len(segments), [s.start for s in segments], [s.end for s in segments], limit)
    return [_mean(segments[g.start : g.stop]) for g in groups]


def _mean(parts: Sequence[LinkSegment]) -> LinkSegment:
    start, end = parts[0].start, parts[-1].end
    if len(parts) == 1 or end <= start:
        return parts[0]
    rate = sum(p.bytes_per_second * (p.end - p.start) for p in parts) / (end - start)
    return LinkSegment(start, end, rate, sum(p.load * (p.end - p.start) for p in parts) / (end - start))


def draw_link(plan: PlanRecord, memory: Memory, on: Canvas) -> tuple[figure, str]:
    """The curve of one link, and a sentence on what was averaged in it (empty if nothing was)."""
    segments = plan.links.get(memory.name, ())
    shown = averaged(segments, MAX_SHAPES)
    scale = measure(memory)
    top = max([scale.limit, *map(scale.of, shown)])
    plot = chart(on, f"Link to {chart_text(clipped(memory.name, 40))}", 176, Range1d(start=0, end=1.22 * top), scale.label)
    plot.yaxis.ticker = BasicTicker(desired_num_ticks=3)
    _draw_curve(plot, on, shown, scale)
    level(plot, scale.limit, scale.limit_text, LIMIT, "dashed")
    if len(shown) == len(segments):
        return plot, ""
    return plot, f"The curve of {printable(memory.name)} has {plural(len(segments), 'step')}; the shortest are averaged to {len(shown):,}."


def _draw_curve(plot: figure, on: Canvas, shown: Sequence[LinkSegment], scale: Measure) -> None:
    unit = on.unit
    data = {
        "left": [unit.of(s.start) for s in shown],
        "right": [unit.of(s.end) for s in shown],
        "top": [scale.of(s) for s in shown],
        "time": [unit.span(s.start, s.end) for s in shown],
        "rate": [format_bandwidth(s.bytes_per_second) for s in shown],
        "load": [percent(s.load) for s in shown],
    }
    area = plot.quad(
        source=ColumnDataSource(data), left="left", right="right", top="top", bottom=0, fill_color=CURVE, fill_alpha=0.18, line_color=None
    )
    curve = outline(shown, scale.of)
    plot.step([unit.of(t) for t in curve.times], list(curve.values), mode="after", line_color=CURVE, line_width=1.25)
    hover(plot, [area], "rate", (("time", "time"), ("load", "load")), mode="vline")
