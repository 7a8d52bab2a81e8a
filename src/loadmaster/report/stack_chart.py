"""The chart of a stack: a lane for each operator, and in it every band from when it is written to
when it is last read."""

from __future__ import annotations

from bokeh.models import FixedTicker, Range1d
from bokeh.plotting import figure

from loadmaster.core.units import format_bytes
from loadmaster.report.charts import Canvas, framed, hover, rectangles
from loadmaster.report.colours import shade
from loadmaster.report.cuts import Band, Stack, piece
from loadmaster.report.text import chart_text, clipped, printable

_MOST_SHAPES = 2000
_FILL = 0.84
_ROWS = (("piece", "piece"), ("alive", "time"), ("size", "size"), ("core", "core"))


def draw_stack(stack: Stack, on: Canvas) -> tuple[figure, str]:
    """Draw the chart; also return a sentence on what it leaves out (empty if nothing).

    Bands that are alive at one time lie one above the other in the lane of their operator.
    """
    unit, rows = on.unit, stack.operators
    bands = [(lane, band) for lane, operator in enumerate(rows) for band in operator.bands]
    end, start = (
        max(unit.of(band.end) for _, band in bands),
        min(unit.of(band.start) for _, band in bands),
    )
    margin = 0.01 * (end - start)
    height = 92 + len(rows) * max(18, min(44, 640 // len(rows)))
    times, lanes = (
        Range1d(start=start - margin, end=end + margin),
        Range1d(start=len(rows) - 0.5, end=-0.5),
    )
    plot = framed(
        chart_text(clipped(stack.title, 60)), height, times, lanes, f"time ({unit.name})", ""
    )
    plot.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    plot.yaxis.major_label_overrides = {
        lane: chart_text(clipped(operator.name, 19)) for lane, operator in enumerate(rows)
    }
    plot.yaxis.update(major_tick_line_color=None, axis_line_color=None)
    plot.ygrid.grid_line_color = None
    shown = bands[:_MOST_SHAPES]
    data = _columns(on, shown) | _heights([band for _, band in shown], [lane for lane, _ in shown])
    data["colour"] = [shade(on.colours[band.job.network], band.job.tile) for _, band in shown]
    hover(plot, [rectangles(plot, data, "colour", 0.85)], "name", _ROWS)
    return plot, f"The first {_MOST_SHAPES:,} of {len(bands):,} bands." if len(
        bands
    ) > _MOST_SHAPES else ""


def _columns(on: Canvas, shown: list[tuple[int, Band]]) -> dict[str, list[object]]:
    return {
        "left": [on.unit.of(band.start) for _, band in shown],
        "right": [on.unit.of(band.end) for _, band in shown],
        "name": [printable(band.tensor.name) for _, band in shown],
        "piece": [piece(band.job) for _, band in shown],
        "time": [on.unit.span(band.start, band.end) for _, band in shown],
        "size": [format_bytes(band.tensor.bytes) for _, band in shown],
        "core": [printable(band.job.core) for _, band in shown],
    }


def _heights(bands: list[Band], lanes: list[int]) -> dict[str, list[object]]:
    """Places in the lanes: every band takes the first free line of its lane, and all lines of a
    lane are as high."""
    free: dict[int, list[float]] = {}
    lines = []
    for lane, band in sorted(
        zip(lanes, bands, strict=True),
        key=lambda item: (item[0], item[1].start, item[1].tensor.name),
    ):
        ends = free.setdefault(lane, [])
        line = next((number for number, end in enumerate(ends) if end <= band.start), len(ends))
        ends[line : line + 1] = [band.end]
        lines.append((lane, band.tensor.name, line))
    place = {(lane, name): line for lane, name, line in lines}
    tops, bottoms = [], []
    for lane, band in zip(lanes, bands, strict=True):
        each = _FILL / len(free[lane])
        top = lane - _FILL / 2 + each * place[lane, band.tensor.name]
        tops.append(top)
        bottoms.append(top + each)
    return {"top": list(tops), "bottom": list(bottoms)}
