"""The summary of a sweep in the terminal: a row for every point."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.core.units import format_bandwidth, format_bytes, format_joules, format_rate, format_seconds, rate_unit
from loadmaster.planning.sweep.design_space import DesignPoint, Sweep
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.text import NOTHING, percent, plural, printable

COLUMNS = (">bandwidth", ">scratchpad", ">makespan", ">gap", ">throughput", ">traffic", ">energy", "front")


def sweep_summary(sweep: Sweep) -> RenderableType:
    """Make a table of the points, with a mark at those of the Pareto front of throughput against scratchpad."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for column in COLUMNS:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    for row in point_rows(sweep):
        table.add_row(*map(Text, row))
    parts: list[RenderableType] = [Text(f"{', '.join(map(printable, sweep.networks))} on {printable(sweep.target)}"), Text(), table, Text()]
    return Group(*parts, *(Text(remark) for remark in remarks(sweep)), Text(figures_rest_on(sweep.costs)))


def point_rows(sweep: Sweep) -> Iterator[tuple[str, ...]]:
    """Iterate over the figures of every point, in the order of :data:`COLUMNS`."""
    unit = rate_unit(sweep.precisions)
    for bandwidth in sweep.bandwidths:
        front = sweep.front(bandwidth)
        for point in sweep.points:
            if point.bandwidth == bandwidth:
                yield format_bandwidth(bandwidth), format_bytes(point.scratchpad), *_figures(point, unit), "*" if point in front else ""


def _figures(point: DesignPoint, unit: str) -> tuple[str, ...]:
    if point.makespan is None or point.lower_bound is None or point.throughput is None or point.traffic_bytes is None:
        return point.status, *(NOTHING,) * 4
    gap = "optimal" if point.status == "optimal" else percent(point.gap or 0.0)
    rate, energy = format_rate(point.throughput, unit), format_joules(point.energy or 0.0)
    return format_seconds(point.makespan), gap, rate, format_bytes(point.traffic_bytes), energy


def remarks(sweep: Sweep) -> Iterator[str]:
    """Iterate over remarks on points that are missing, or have no plan."""
    yield "gap: of the objective (the makespan unless told) above its proven lower bound"
    yield "front: no smaller scratchpad has as much throughput at this bandwidth"
    if sweep.missing:
        yield f"stopped early: {plural(sweep.missing, 'point')} not planned; the same command goes on from here"
    without = [point for point in sweep.points if not point.planned]
    if without:
        yield f"{plural(len(without), 'point')} without a plan; the first: {printable(without[0].reason)}"
    late = [point for point in sweep.points if point.missed]
    if late:
        yield f"{plural(len(late), 'plan')} with mini-batches that miss their deadlines"
    broken = [point for point in sweep.points if point.violations]
    if broken:
        yield f"{plural(len(broken), 'plan')} that the independent check rejects: do not rely on these figures"
