"""The views of a sweep, and of a search for the least sufficient machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

from loadmaster.core.units import (
    ENERGIES,
    TIMES,
    format_bandwidth,
    format_bytes,
    format_count,
    format_joules,
    format_rate,
    format_seconds,
    rate_unit,
)
from loadmaster.cost.analytical.energy import area, energy_rates
from loadmaster.planning.sweep.axes import Axis
from loadmaster.planning.sweep.design_space import Sweep
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.planning.sweep.size import Sizing, Verdict
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.text import NOTHING, if_known, percent, plural
from loadmaster.report.view import (
    BOTH,
    PLAIN,
    TERMINAL,
    Facts,
    Figure,
    Figures,
    Line,
    Mark,
    Notes,
    Page,
    PagePart,
    Polyline,
    Scatter,
    Section,
    Table,
    pairs,
    table,
)
from loadmaster.targets.hardware import Style, Target

_PICO_PER_FEMTO = 1e-3
_FAR = 4.0
"""Ratio of a limit to the slowest point above which the limit is not drawn, because it would
compress the chart."""
_OPTIONS = {
    "mini_batches": "mini-batches of every network",
    "objective": "objective",
    "effort": "effort of the search",
    "cut": "cutting of operators",
    "seed": "seed",
    "time_limit": "seconds for each plan",
    "periods": "periods in seconds",
    "deadlines": "deadlines in seconds",
}
"""Options of planning with their texts in remarks."""
_TOLD = (">makespan", "+>lower bound", ">throughput", ">energy", ">area")
"""Columns of a point's figures that its tooltip shows."""
_FRONT_HINT = (
    "Each point is a whole plan; the bar below it ends at its proven lower bound, which no plan"
    " for that machine can go below."
)


def sweep_page(sweep: Sweep) -> Page:
    """Make the page of a sweep: the smallest sufficient point, Pareto fronts, throughput over the
    axes, and the sources of costs."""
    heads = "Network", "Precision", ">Batch", ">MACs", ">Weights"
    networks = table(
        heads,
        (
            (n.name, n.precision, str(n.batch), format_count(n.macs), format_bytes(n.weight_bytes))
            for n in sweep.networks
        ),
    )
    options = pairs(
        (name, str(sweep.options[key]))
        for key, name in _OPTIONS.items()
        if sweep.options.get(key) not in (None, {})
    )
    varied = ", ".join(map(axis_title, sweep.axes))
    about = f"{sweep.target.description}. Varied: {varied}; all else as below."
    name = f"{', '.join(network.name for network in sweep.networks)} on {sweep.target.name}"
    notes = Notes(list(remarks(sweep)))
    costs = figures_rest_on(sweep.costs)
    sections = [
        Section("", [Line(name)], (TERMINAL,)),
        Section("", [Figures(_highlights(sweep)), Line(costs, "strong"), notes]),
        Section("Time over area", [_front_chart(sweep)], hint=_FRONT_HINT),
        Section("Energy over time", [_scatter(sweep, "makespan", "energy")]),
        Section("Points", [points(sweep)], BOTH),
        Section("Networks", [networks]),
        Section("The machine that was varied", machine_tables(sweep.target), hint=about),
        Section("How points were planned", [options]),
        Section("", [notes, Line(costs)], (TERMINAL,)),
    ]
    return Page(name, "What other machines would be worth", lambda: sections)


def _highlights(sweep: Sweep) -> list[Figure]:
    """Return figures of the smallest sufficient point, and of the ends of the range."""
    planned = [point for point in sweep.points if point.planned]
    chosen = {"Least area within the limits": sweep.smallest()}
    for name, *fields in (
        ("Fastest", "makespan", "area"),
        ("Least area", "area", "makespan"),
        ("Least energy", "energy", "area"),
    ):
        chosen[name] = min(planned, key=attrgetter(*fields), default=None)
    figures = []
    for name, point in chosen.items():
        if point is not None:
            shown = _figures(sweep, point)
            value = ", ".join(shown[key] for key in (">makespan", ">energy", ">area"))
            figures.append(Figure(name, value, where(sweep, point)))
    return figures


def _scatter(sweep: Sweep, x: str, y: str, **more: Any) -> Scatter:
    """Make the chart of two fields of every plan; points on no front are hollow, and makespans have
    their bounds."""
    marks, names = [], []
    for number, front in enumerate(sweep.fronts().values()):
        at = labels(sweep, front[0])
        names.append(", ".join(at[axis_title(a)] for a in sweep.axes if a.name in sweep.free))
        for point in sweep.points:
            if point.planned and sweep.group(point) == sweep.group(front[0]):
                shown = _figures(sweep, point)
                facts = {key.lstrip("+>"): shown[key] for key in _TOLD}
                marks.append(
                    Mark(
                        getattr(point, x) or 0.0,
                        getattr(point, y) or 0.0,
                        where(sweep, point),
                        facts | {"above the bound": shown[">gap"]},
                        number,
                        hollow=point not in front,
                        bound=point.lower_bound if y == "makespan" else None,
                    )
                )
    titles = {"area": "area (mm2, estimated)"}
    units = {"makespan": TIMES, "energy": ENERGIES}
    return Scatter(
        "",
        titles.get(x, x),
        y,
        marks,
        groups=names if len(names) > 1 else (),
        units=(units.get(x, PLAIN), units[y]),
        **more,
    )


def _front_chart(sweep: Sweep) -> Scatter:
    """Make the chart of makespan over area with bounds, a line for each front, and the limit."""
    planned = [point for point in sweep.points if point.planned]
    most = max((point.makespan or 0.0 for point in planned), default=1.0)
    longest = sweep.limits.seconds(min((p.frames for p in planned), default=1))
    limit = None
    if longest is not None and longest < _FAR * most:
        limit = longest, f"limit {format_seconds(longest)}"
    remark = (
        "Filled: on the front of area, makespan and energy. Hollow: another point has less of one"
        " and no more of the others."
    )
    paths = [
        Polyline(staircase([(p.area, p.makespan or 0.0) for p in front]), number)
        for number, front in enumerate(sweep.fronts().values())
    ]
    return _scatter(sweep, "area", "makespan", paths=paths, limit=limit, remark=remark)


def staircase(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return a falling step line, the least y up to each x."""
    steps: list[tuple[float, float]] = []
    for x, y in sorted(points):
        before = steps[-1][1] if steps else y
        steps += [(x, before), (x, min(before, y))]
    return steps


def points(sweep: Sweep) -> Table:
    """Make a table of the figures of every point, with a mark at points on Pareto fronts of area,
    makespan and energy."""
    met = sweep.limits.met_by
    on_fronts = [point for front in sweep.fronts().values() for point in front]
    return Table(
        [
            {
                **{f">{title}": label for title, label in labels(sweep, point).items()},
                **_figures(sweep, point),
                **({"within limits": "yes" if met(point) else "no"} if sweep.limits else {}),
                "front": "*" * (point in on_fronts),
            }
            for point in sweep.points
        ]
    )


def axis_title(axis: Axis) -> str:
    """Return the title of an axis."""
    return axis.name if axis.is_machine else axis.name.replace("_", "-")


def labels(sweep: Sweep, point: DesignPoint) -> Facts:
    """Return the values of a point on all axes by the axes' titles."""
    return {axis_title(axis): axis.labels()[axis.index(point.at[axis.name])] for axis in sweep.axes}


def where(sweep: Sweep, point: DesignPoint) -> str:
    """Return the values of a point on all axes as one text, with the axes' names."""
    return ", ".join(f"{title} {label}" for title, label in labels(sweep, point).items())


def format_area(square_millimetres: float) -> str:
    """Format an area with three significant digits."""
    if square_millimetres >= 1000:
        return f"{square_millimetres:,.0f} mm2"
    return f"{square_millimetres:#.3g}".rstrip(".") + " mm2"


def _figures(sweep: Sweep, point: DesignPoint) -> Facts:
    """Return the figures of a point by the headings of their columns."""
    rate = partial(format_rate, unit=rate_unit(sweep.precisions))
    return {
        ">area": format_area(point.area),
        ">makespan": if_known(point.makespan, format_seconds, point.status),
        "+>lower bound": if_known(point.lower_bound, format_seconds),
        ">gap": "optimal" if point.status == "optimal" else if_known(point.gap, percent),
        ">throughput": if_known(point.throughput, rate),
        "+>traffic": if_known(point.traffic_bytes, format_bytes),
        ">energy": if_known(point.energy, format_joules),
    }


def remarks(sweep: Sweep) -> Iterator[str]:
    """Yield explanations of the columns, and remarks on points that are missing or have no plan."""
    if sweep.limits:
        best = sweep.smallest()
        found = (
            "no point is" if best is None else f"the one of least area is at {where(sweep, best)}"
        )
        yield f"within the limits ({sweep.limits}): {found}"
    yield "gap: of the objective (the makespan unless told) above its proven lower bound"
    same = f", at the same {' and '.join(sweep.free)}" if sweep.free else ""
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
        yield f"{plural(len(without), 'point')} without a plan; the first: {without[0].reason}"
    late = sum(bool(point.missed) for point in sweep.points)
    if late:
        yield f"{plural(late, 'plan')} with mini-batches that miss their deadlines"
    broken = sum(bool(point.violations) for point in sweep.points)
    if broken:
        yield (
            f"{plural(broken, 'plan')} that the independent check rejects: do not rely on"
            " these figures"
        )


def machine_tables(target: Target) -> list[Table]:
    """Return the tables of a target's memories and cores, with the costs that the cost model
    assigns them."""
    rates = energy_rates(target)
    memories = [
        {
            "Memory": m.name,
            ">Capacity": format_bytes(m.capacity),
            ">Read": format_bandwidth(m.read_bandwidth),
            ">Write": format_bandwidth(m.write_bandwidth),
            ">Energy per byte": f"{price * _PICO_PER_FEMTO:.3g} pJ",
        }
        for m, price in zip(target.memories, rates.memories, strict=False)
    ]
    cores = [
        {
            "Core": core.name,
            "Dataflow": str(core.style),
            ">Array": NOTHING if core.style is Style.ROOFLINE else f"{core.rows} x {core.columns}",
            ">Clock": format_rate(core.clock, "Hz"),
            ">Private buffer": format_bytes(core.buffer) if core.buffer else NOTHING,
            ">MACs/cycle (int8)": f"{core.rows * core.columns * core.macs_per_cycle[8]:,.0f}",
            ">Before each job": format_seconds(core.start_up) if core.start_up else NOTHING,
            ">Area (45 nm)": f"{area(core):.3g} mm2",
        }
        for core in target.cores
    ]
    return [Table(memories), Table(cores)]


def size_summary(found: Sizing, effort: str = "normal") -> list[PagePart]:
    """Return the view of a search for the least machine: answer, trials, and sources of figures.
    With less than normal ``effort``, failures to find a plan say so."""
    less = " with --effort quick" if effort == "quick" else ""
    rows = []
    for trial in found.trials:
        figure = partial(getattr, trial.point)
        rows.append(
            {
                f">{found.axis}": str(trial.value),
                "": f"{trial.verdict}{less * (trial.verdict == Verdict.NOT_FOUND)}",
                ">makespan": if_known(figure("makespan", None), format_seconds),
                ">lower bound": if_known(figure("lower_bound", None), format_seconds),
                ">energy": if_known(figure("energy", None), format_joules),
            }
        )
    heading = f"{', '.join(found.networks)} on {found.target.name}, {found.limits}"
    return [
        Notes([heading, *size_answer(found, less)]),
        Table(rows),
        Line(figures_rest_on(found.costs)),
    ]


def size_answer(found: Sizing, less: str = "") -> Iterator[str]:
    """Yield the sentences of the answer; ``less`` is a remark on reduced effort, for values without
    a plan."""
    least, excluded, between = found.least, found.excluded, found.open
    first, last = found.values[0], found.values[-1]
    if least is not None:
        assert least.point is not None
        yield (
            f"{found.axis} {least.value} suffices: a plan that was checked takes"
            f" {format_seconds(least.point.makespan or 0.0)} and"
            f" {format_joules(least.point.energy or 0.0)}."
        )
    elif found.status == "infeasible":
        yield f"No value from {first} to {last} suffices; that is proven."
    else:
        yield f"No value from {first} to {last} was found to suffice{less}."
    if excluded is not None:
        worse = " or less" if first.value <= last.value else " or more"
        yield f"With {excluded.value}{worse * found.ordered} none can: {excluded.reason}."
    if between and (least is not None or excluded is not None):
        listed = str(between[0])
        if len(between) > 1:
            listed += f" to {between[-1]} ({plural(len(between), 'value')})"
        yield (
            f"Not known: {listed}: no bound excludes a plan that keeps the limits, and none was"
            f" found{less} where one was tried."
        )
    if not found.ordered:
        yield f"Values were tried one by one, as more of {found.axis} need not be better."
    if found.interrupted:
        yield "Stopped early: what is said holds, and more may be found."
