"""The summary of a sweep in the terminal: a row for every point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.core.units import (
    format_bytes,
    format_joules,
    format_rate,
    format_seconds,
    rate_unit,
)
from loadmaster.planning.sweep.axes import Axis
from loadmaster.planning.sweep.design_space import Sweep
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.text import NOTHING, percent, plural, printable

FIGURES = (">area", ">makespan", ">lower bound", ">gap", ">throughput", ">traffic", ">energy")
ON_PAGE_ONLY = (">lower bound", ">traffic")
"""Columns for which a terminal has no room."""
_WITHIN = {True: "yes", False: "no"}


def sweep_summary(sweep: Sweep) -> RenderableType:
    """Make a table of the points, with a mark at those of the Pareto fronts of area, makespan and
    energy."""
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False
    )
    names = columns(sweep)
    shown = [n for n, name in enumerate(names) if name not in ON_PAGE_ONLY]
    rows = [[row[n] for n in shown] for row in point_rows(sweep)]
    for n, cells in zip(shown, zip(*rows, strict=True), strict=False):
        # A heading may be broken between words, a figure may not.
        heading, widest = names[n].removeprefix(">"), max(map(len, cells))
        heading = (
            heading.replace(" ", "\n").replace(".", ".\n") if len(heading) > widest else heading
        )
        justify: Literal["left", "right"] = "right" if names[n].startswith(">") else "left"
        table.add_column(
            heading,
            justify=justify,
            no_wrap=True,
            min_width=max(widest, *map(len, heading.split("\n"))),
        )
    for row in rows:
        table.add_row(*map(Text, row))
    parts: list[RenderableType] = [Text(title(sweep)), Text(), table, Text()]
    return Group(
        *parts, *(Text(remark) for remark in remarks(sweep)), Text(figures_rest_on(sweep.costs))
    )


def title(sweep: Sweep) -> str:
    """Name the networks and the target."""
    return (
        f"{', '.join(printable(network.name) for network in sweep.networks)} on"
        f" {printable(sweep.target.name)}"
    )


def columns(sweep: Sweep) -> tuple[str, ...]:
    """Name the columns of :func:`point_rows`; figures begin with ``>``."""
    limits = ("within limits",) if sweep.limits else ()
    return (*(f">{axis_title(axis)}" for axis in sweep.axes), *FIGURES, *limits, "front")


def axis_title(axis: Axis) -> str:
    """Name an axis for people."""
    return printable(axis.name.replace("_", "-")) if not axis.is_machine else printable(axis.name)


def point_rows(sweep: Sweep) -> Iterator[tuple[str, ...]]:
    """Iterate over the figures of every point, in the order of :func:`columns`."""
    unit, fronts = rate_unit(sweep.precisions), sweep.fronts()
    for point in sweep.points:
        within = (_WITHIN[sweep.limits.met_by(point)],) if sweep.limits else ()
        mark = "*" if point.planned and point in fronts[sweep.group(point)] else ""
        yield *labels(sweep, point), *_figures(point, unit), *within, mark


def labels(sweep: Sweep, point: DesignPoint) -> tuple[str, ...]:
    """Say where a point is on every axis."""
    return tuple(printable(axis.labels()[axis.index(point.at[axis.name])]) for axis in sweep.axes)


def where(sweep: Sweep, point: DesignPoint) -> str:
    """Say where a point is on every axis, with the axes' names."""
    return ", ".join(
        f"{axis_title(axis)} {label}"
        for axis, label in zip(sweep.axes, labels(sweep, point), strict=True)
    )


def format_area(square_millimetres: float) -> str:
    """Format an area with three significant digits."""
    return (
        f"{square_millimetres:#.3g}".rstrip(".") + " mm2"
        if square_millimetres < 1000
        else f"{square_millimetres:,.0f} mm2"
    )


def _figures(point: DesignPoint, unit: str) -> tuple[str, ...]:
    area = format_area(point.area)
    if (
        point.makespan is None
        or point.lower_bound is None
        or point.throughput is None
        or point.traffic_bytes is None
    ):
        return area, point.status, *(NOTHING,) * 5
    gap = "optimal" if point.status == "optimal" else percent(point.gap or 0.0)
    rate, energy = format_rate(point.throughput, unit), format_joules(point.energy or 0.0)
    return (
        area,
        format_seconds(point.makespan),
        format_seconds(point.lower_bound),
        gap,
        rate,
        format_bytes(point.traffic_bytes),
        energy,
    )


def remarks(sweep: Sweep) -> Iterator[str]:
    """Iterate over what the columns mean, and remarks on points that are missing, or have no
    plan."""
    if sweep.limits:
        best = sweep.smallest()
        found = (
            "no point is" if best is None else f"the one of least area is at {where(sweep, best)}"
        )
        yield f"within the limits ({printable(str(sweep.limits))}): {found}"
    yield "gap: of the objective (the makespan unless told) above its proven lower bound"
    same = f", at the same {' and '.join(map(printable, sweep.free))}" if sweep.free else ""
    yield (
        f"front: no other point has less of area, makespan or energy without more of another{same}"
    )
    yield (
        "area: of arithmetic and memory cells of cores and fast memory, estimated from published"
        " figures of 45 nm silicon"
    )
    if sweep.missing:
        yield (
            f"stopped early: {plural(sweep.missing, 'point')} not planned; the same command goes on"
            " from here"
        )
    without = [point for point in sweep.points if not point.planned]
    if without:
        yield (
            f"{plural(len(without), 'point')} without a plan; the first:"
            f" {printable(without[0].reason)}"
        )
    late = [point for point in sweep.points if point.missed]
    if late:
        yield f"{plural(len(late), 'plan')} with mini-batches that miss their deadlines"
    broken = [point for point in sweep.points if point.violations]
    if broken:
        yield (
            f"{plural(len(broken), 'plan')} that the independent check rejects: do not rely on"
            " these figures"
        )
