"""The charts of a sweep: makespan over area, energy over makespan, and throughput over the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FactorRange, Range1d
from bokeh.plotting import figure

from loadmaster.core.units import format_joules, format_rate, format_seconds, rate_unit
from loadmaster.planning.sweep.design_space import Sweep
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.report.charts import FAINT, FONT, INK, framed, hover, level
from loadmaster.report.colours import PALETTE
from loadmaster.report.sweep import axis_title, format_area, labels
from loadmaster.report.text import chart_text, percent

_ROW = 34
_NARROWEST = 520
"""Pixels of a chart's width, at least; a narrower window scrolls it."""
_LABELLED = 10
"""The most columns of the map with a figure in each cell."""
_MOST_GROUPS = 12
"""Groups that are named in a legend."""
_FAR = 4.0
"""A limit so many times above the slowest point is not drawn: it would press all points to the
axis."""
_LIGHT, _DARK = (0xED, 0xF4, 0xFA), (0x0B, 0x3C, 0x6F)
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_ENERGIES = ((1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ"), (1e-9, "nJ"), (1e-12, "pJ"))


def draw_front(sweep: Sweep) -> tuple[figure, str]:
    """Draw makespan over area with its bound: filled marks are Pareto fronts, hollow ones
    dominated; a line for each front."""
    planned = [point for point in sweep.points if point.planned]
    scale, unit = _unit(_TIMES, max((p.makespan or 0.0 for p in planned), default=1.0))
    top = max((p.makespan or 0.0 for p in planned), default=1.0) / scale
    longest = sweep.limits.seconds(min((p.frames for p in planned), default=1))
    limited = longest is not None and longest / scale < _FAR * top
    y_range = Range1d(
        start=0, end=1.08 * max(top, longest / scale if longest is not None and limited else 0.0)
    )
    plot = framed(
        "",
        400,
        _range([p.area for p in planned]),
        y_range,
        "area (mm2, estimated)",
        f"makespan ({unit})",
        min_width=_NARROWEST,
    )
    fronts = sweep.fronts()
    for number, (group, front) in enumerate(fronts.items()):
        colour, name = PALETTE[number % len(PALETTE)], _group_name(sweep, group)
        best = _staircase([(p.area, p.makespan or 0.0) for p in front])
        plot.line(
            [x for x, _ in best],
            [y / scale for _, y in best],
            line_color=colour,
            line_width=1.5,
            **_legend(name, len(fronts)),
        )
        mine = [p for p in planned if sweep.group(p) == group]
        source = ColumnDataSource(
            _described(sweep, mine)
            | _times(mine, scale)
            | {"fill": [colour if p in front else "#ffffff" for p in mine]}
        )
        plot.segment(
            "x", "bound", "x", "y", source=source, line_color=colour, line_alpha=0.45, line_width=1
        )
        plot.scatter("x", "bound", source=source, marker="dash", size=9, line_color=colour)
        marks = plot.scatter(
            "x",
            "y",
            source=source,
            size=8,
            line_color=colour,
            fill_color="fill",
            **_legend(name, len(fronts)),
        )
        hover(plot, [marks], "name", _ROWS)
    if longest is not None and limited:
        level(plot, longest / scale, f"limit {format_seconds(longest)}", INK, "dashed")
    _below(plot)
    return (
        plot,
        (
            "Filled: on the front of area, makespan and energy. Hollow: another point has less of"
            " one and no more of the others."
        ),
    )


def draw_energy(sweep: Sweep) -> tuple[figure, str]:
    """Draw energy over makespan, of the same points."""
    planned = [point for point in sweep.points if point.planned]
    (seconds, time), (joules, energy) = (
        _unit(units, max((getattr(p, field) or 0.0 for p in planned), default=1.0))
        for units, field in ((_TIMES, "makespan"), (_ENERGIES, "energy"))
    )
    spans = [(p.makespan or 0.0) / seconds for p in planned]
    top = max(((p.energy or 0.0) / joules for p in planned), default=1.0)
    plot = framed(
        "",
        320,
        _range(spans),
        Range1d(start=0, end=1.08 * top),
        f"makespan ({time})",
        f"energy ({energy})",
        min_width=_NARROWEST,
    )
    fronts = sweep.fronts()
    for number, (group, front) in enumerate(fronts.items()):
        colour, mine = (
            PALETTE[number % len(PALETTE)],
            [p for p in planned if sweep.group(p) == group],
        )
        columns = {
            "x": [(p.makespan or 0.0) / seconds for p in mine],
            "y": [(p.energy or 0.0) / joules for p in mine],
            "fill": [colour if p in front else "#ffffff" for p in mine],
        }
        source = ColumnDataSource(_described(sweep, mine) | columns)
        legend = _legend(_group_name(sweep, group), len(fronts))
        marks = plot.scatter(
            "x", "y", source=source, size=8, line_color=colour, fill_color="fill", **legend
        )
        hover(plot, [marks], "name", _ROWS)
    _below(plot)
    return plot, ""


def draw_map(sweep: Sweep) -> tuple[figure, str]:
    """Draw a cell for each point, darker with more throughput, hatched where there is no plan: the
    first axis across, the others down."""
    across, *down = sweep.axes
    columns = [chart_text(label) for label in across.labels()]
    rows = list(dict.fromkeys(_row(sweep, point) for point in sweep.points)) or [""]
    ranges = FactorRange(factors=columns), FactorRange(factors=rows[::-1])
    plot = framed(
        "",
        90 + _ROW * len(rows),
        *ranges,
        axis_title(across),
        " and ".join(map(axis_title, down)),
        min_width=_NARROWEST,
    )
    plot.grid.visible = False
    top, unit = max(map(_throughput, sweep.points), default=0.0) or 1.0, rate_unit(sweep.precisions)

    def cells(points: Sequence[DesignPoint]) -> dict[str, list[str]]:
        return _described(sweep, points) | {
            "x": [columns[across.index(p.at[across.name])] for p in points],
            "y": [_row(sweep, p) for p in points],
            "short": [format_rate(_throughput(p), unit) for p in points],
            "colour": [_shade(_throughput(p) / top) for p in points],
            "ink": [INK if _throughput(p) < 0.5 * top else "#ffffff" for p in points],
            "reason": [chart_text(p.reason) for p in points],
        }

    planned = ColumnDataSource(cells([p for p in sweep.points if p.planned]))
    drawn = plot.rect("x", "y", 1, 1, source=planned, fill_color="colour", line_color="#ffffff")
    hover(plot, [drawn], "name", _ROWS)
    if len(columns) <= _LABELLED:
        text = plot.text(
            "x",
            "y",
            text="short",
            source=planned,
            text_color="ink",
            text_align="center",
            text_baseline="middle",
        )
        text.glyph.update(text_font=value(FONT), text_font_size=value("11px"))
    without = ColumnDataSource(cells([p for p in sweep.points if not p.planned]))
    hatched = plot.rect(
        "x",
        "y",
        1,
        1,
        source=without,
        fill_color="#ffffff",
        line_color=FAINT,
        hatch_pattern="/",
        hatch_color=FAINT,
    )
    hover(plot, [hatched], "name", (("no plan", "reason"),))
    return (
        plot,
        "Hatched: no plan. White: not planned yet." if sweep.missing else "Hatched: no plan.",
    )


_ROWS = (
    ("makespan", "makespan"),
    ("lower bound", "least"),
    ("throughput", "throughput"),
    ("energy", "energy"),
    ("area", "area"),
    ("", "gap"),
)


def _described(sweep: Sweep, points: Sequence[DesignPoint]) -> dict[str, list[str]]:
    """Columns that tooltips show."""
    unit = rate_unit(sweep.precisions)
    return {
        "name": [", ".join(labels(sweep, p)) for p in points],
        "makespan": [format_seconds(p.makespan or 0.0) for p in points],
        "least": [format_seconds(p.lower_bound or 0.0) for p in points],
        "throughput": [format_rate(_throughput(p), unit) for p in points],
        "energy": [format_joules(p.energy or 0.0) for p in points],
        "area": [format_area(p.area) for p in points],
        "gap": [
            "optimal" if p.status == "optimal" else f"{percent(p.gap or 0.0)} above the bound"
            for p in points
        ],
    }


def _times(points: Sequence[DesignPoint], scale: float) -> dict[str, list[float]]:
    return {
        "x": [p.area for p in points],
        "y": [(p.makespan or 0.0) / scale for p in points],
        "bound": [(p.lower_bound or 0.0) / scale for p in points],
    }


def _staircase(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that are lower than all to their left, with steps between them."""
    steps: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not steps or y < steps[-1][1]:
            steps += [(x, steps[-1][1])] if steps else []
            steps.append((x, y))
    return steps


def _group_name(sweep: Sweep, group: Sequence[float | str]) -> str:
    by_name = {axis.name: axis for axis in sweep.axes}
    shown = [
        by_name[name].labels()[by_name[name].index(each)]
        for name, each in zip(sweep.free, group, strict=True)
    ]
    return chart_text(", ".join(shown))


def _row(sweep: Sweep, point: DesignPoint) -> str:
    return chart_text(", ".join(labels(sweep, point)[1:]))


def _legend(name: str, groups: int) -> dict[str, Any]:
    return {"legend_label": name} if name and 1 < groups <= _MOST_GROUPS else {}


def _below(plot: figure) -> None:
    """Put the legend below the chart, if there is one, where it takes no width."""
    if plot.legend:
        plot.legend.update(
            label_text_font=FONT,
            label_text_font_size="11px",
            border_line_color=None,
            ncols=4,
            padding=2,
        )
        plot.add_layout(plot.legend[0], "below")


def _range(values: Sequence[float]) -> Range1d:
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    return Range1d(start=max(0.0, low - margin), end=high + margin)


def _unit(units: Sequence[tuple[float, str]], most: float) -> tuple[float, str]:
    return next((each for each in units if most >= each[0]), units[-1])


def _throughput(point: DesignPoint) -> float:
    return point.throughput or 0.0


def _shade(share: float) -> str:
    return "#" + "".join(
        f"{round(low + (high - low) * share):02x}" for low, high in zip(_LIGHT, _DARK, strict=True)
    )
