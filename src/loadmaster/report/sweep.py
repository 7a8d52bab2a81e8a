"""A sweep's page and its summary in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadmaster.core.units import (
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
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.text import ENERGIES, NOTHING, TIMES, largest_unit, percent, plural
from loadmaster.report.view import (
    Cell,
    Figure,
    Figures,
    Line,
    Mark,
    Notes,
    Page,
    Part,
    Path,
    Scatter,
    Section,
    Shaded,
    Table,
    text_of,
)
from loadmaster.targets.hardware import Core, Style, Target

_ON_PAGE_ONLY = (">lower bound", ">traffic")
"""Columns for which a terminal has no room."""
_PICO_PER_FEMTO = 1e-3
_FAR = 4.0
"""A limit so many times above the slowest point is not drawn: it would press all points to the
axis."""
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
"""What is told of how points were planned."""
_FRONT_HINT = (
    "Each point is a whole plan; the bar below it ends at its proven lower bound, which no plan"
    " for that machine can go below."
)


def sweep_page(sweep: Sweep) -> Page:
    """Make the page of a sweep: what to build, Pareto fronts, throughput over the axes, and what it
    all rests on."""
    figures = Figures(_chosen(sweep))
    costs = Line(figures_rest_on(sweep.costs), "strong")
    networks = [
        (n.name, n.precision, str(n.batch), format_count(n.macs), format_bytes(n.weight_bytes))
        for n in sweep.networks
    ]
    heads = ("Network", "Precision", ">Batch", ">MACs", ">Weights")
    options = [
        (name, str(shown))
        for key, name in _OPTIONS.items()
        if (shown := sweep.options.get(key)) not in (None, {})
    ]
    varied = f"Varied: {', '.join(map(axis_title, sweep.axes))}; all else as below."
    machine = Line(f"{sweep.target.description}. {varied}", "hint")
    sections = [
        Section("", [figures, costs, Notes(list(remarks(sweep)))]),
        Section("Time over area", [Line(_FRONT_HINT, "hint"), _front_chart(sweep)]),
        Section("Energy over time", [_energy_chart(sweep)]),
        Section("Throughput over the axes", [_throughput(sweep)]),
        Section("Points", [points(sweep)]),
        Section("Networks", [Table(heads, networks)]),
        Section("The machine that was varied", [machine, *machine_tables(sweep.target)]),
        Section("How points were planned", [Table(("Option", ">Value"), options)]),
    ]
    return Page(title(sweep), "What other machines would be worth", sections)


def _chosen(sweep: Sweep) -> list[Figure]:
    """Choose the point to build and the ends of the range."""
    planned = [point for point in sweep.points if point.planned]
    if not planned:
        return []
    best = sweep.smallest()
    chosen = {
        **({} if best is None else {"Least area within the limits": best}),
        "Fastest": min(planned, key=lambda p: (p.makespan, p.area)),
        "Least area": min(planned, key=lambda p: (p.area, p.makespan)),
        "Least energy": min(planned, key=lambda p: (p.energy, p.area)),
    }
    return [
        Figure(
            name,
            f"{format_seconds(p.makespan or 0.0)}, {format_joules(p.energy or 0.0)},"
            f" {format_area(p.area)}",
            distance=where(sweep, p),
        )
        for name, p in chosen.items()
    ]


def _marks(sweep: Sweep, x: str, y: str, scales: tuple[float, float]) -> list[Mark]:
    """Make a point for each plan, of two of its fields; those of no front are hollow."""
    marks = []
    for number, (group, front) in enumerate(sweep.fronts().items()):
        for point in sweep.points:
            if point.planned and sweep.group(point) == group:
                bound = (point.lower_bound or 0.0) / scales[1] if y == "makespan" else None
                marks.append(
                    Mark(
                        (getattr(point, x) or 0.0) / scales[0],
                        (getattr(point, y) or 0.0) / scales[1],
                        ", ".join(labels(sweep, point)),
                        _facts(sweep, point),
                        number,
                        hollow=point not in front,
                        bound=bound,
                    )
                )
    return marks


def _most(sweep: Sweep, field: str) -> float:
    return max((getattr(p, field) or 0.0 for p in sweep.points if p.planned), default=1.0)


def _group_names(sweep: Sweep) -> list[str]:
    """Name the fronts, if there are several."""
    by_name, fronts = {axis.name: axis for axis in sweep.axes}, sweep.fronts()
    return [
        ", ".join(
            by_name[name].labels()[by_name[name].index(each)]
            for name, each in zip(sweep.free, group, strict=True)
        )
        for group in fronts
        if len(fronts) > 1
    ]


def _front_chart(sweep: Sweep) -> Scatter:
    """Draw makespan over area with its bound, a line for each front, and the limit."""
    planned = [point for point in sweep.points if point.planned]
    most = _most(sweep, "makespan")
    scale, unit = largest_unit(most, TIMES)
    longest = sweep.limits.seconds(min((p.frames for p in planned), default=1))
    paths = []
    for number, front in enumerate(sweep.fronts().values()):
        best = staircase([(p.area, (p.makespan or 0.0) / scale) for p in front])
        paths.append(Path(best, number))
    limit = None
    if longest is not None and longest < _FAR * most:
        limit = longest / scale, f"limit {format_seconds(longest)}"
    return Scatter(
        "",
        "area (mm2, estimated)",
        f"makespan ({unit})",
        _marks(sweep, "area", "makespan", (1.0, scale)),
        paths,
        _group_names(sweep),
        limit=limit,
        remark=(
            "Filled: on the front of area, makespan and energy. Hollow: another point has less of"
            " one and no more of the others."
        ),
    )


def _energy_chart(sweep: Sweep) -> Scatter:
    """Draw energy over makespan, of the same points."""
    seconds, time = largest_unit(_most(sweep, "makespan"), TIMES)
    joules, energy = largest_unit(_most(sweep, "energy"), ENERGIES)
    marks = _marks(sweep, "makespan", "energy", (seconds, joules))
    names = f"makespan ({time})", f"energy ({energy})"
    return Scatter("", *names, marks, groups=_group_names(sweep), height=320)


def _throughput(sweep: Sweep) -> Table:
    """Make a table of throughput over the axes, darker with more: the first axis across, the others
    down."""
    across, *down = sweep.axes
    unit, top = rate_unit(sweep.precisions), _most(sweep, "throughput") or 1.0
    found: dict[tuple[str, ...], dict[str, Cell]] = {}
    for point in sweep.points:
        column, *others = labels(sweep, point)
        rate = point.throughput or 0.0
        cell = Shaded(format_rate(rate, unit), rate / top) if point.planned else "no plan"
        found.setdefault(tuple(others), {})[column] = cell
    rows = [
        [*others, *(cells.get(column, NOTHING) for column in across.labels())]
        for others, cells in found.items()
    ]
    heads = [f">{axis_title(across)} {label}" for label in across.labels()]
    return Table([*map(axis_title, down), *heads], rows)


def _facts(sweep: Sweep, point: DesignPoint) -> dict[str, str]:
    """List the figures of a point for tooltips."""
    area, makespan, bound, gap, rate, _, energy = _figures(point, rate_unit(sweep.precisions))
    far = gap if point.status == "optimal" else f"{gap} above the bound"
    named = {"makespan": makespan, "lower bound": bound, "throughput": rate}
    return named | {"energy": energy, "area": area, "distance": far}


def staircase(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that are lower than all to their left, with steps between them."""
    steps: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not steps or y < steps[-1][1]:
            steps += [(x, steps[-1][1])] if steps else []
            steps.append((x, y))
    return steps


def sweep_summary(sweep: Sweep) -> list[Part]:
    """Make a table of the points, with a mark at those of the Pareto fronts of area, makespan and
    energy."""
    every = points(sweep)
    kept = [name for name in every.columns if name not in _ON_PAGE_ONLY]
    table, heads = every.brief(*kept, width=1_000), []
    for at, head in enumerate(kept):
        # A heading may be broken between words, a figure may not.
        widest = max((len(text_of(row[at])) for row in table.rows), default=0)
        broken = head.replace(" ", "\n").replace(".", ".\n")
        heads.append(broken if len(head.removeprefix(">")) > widest else head)
    notes = Notes([*remarks(sweep), figures_rest_on(sweep.costs)])
    return [Line(title(sweep)), replace(table, columns=heads), notes]


def title(sweep: Sweep) -> str:
    """Name the networks and the target."""
    return f"{', '.join(network.name for network in sweep.networks)} on {sweep.target.name}"


def axis_title(axis: Axis) -> str:
    """Name an axis for people."""
    return axis.name if axis.is_machine else axis.name.replace("_", "-")


def points(sweep: Sweep) -> Table:
    """Make a table of the figures of every point."""
    unit, fronts = rate_unit(sweep.precisions), sweep.fronts()
    rows = []
    for point in sweep.points:
        within = ["yes" if sweep.limits.met_by(point) else "no"] if sweep.limits else []
        mark = "*" if point.planned and point in fronts[sweep.group(point)] else ""
        rows.append((*labels(sweep, point), *_figures(point, unit), *within, mark))
    columns = (
        *(f">{axis_title(axis)}" for axis in sweep.axes),
        *(">area", ">makespan", ">lower bound", ">gap", ">throughput", ">traffic", ">energy"),
        *(["within limits"] if sweep.limits else []),
        "front",
    )
    return Table(columns, rows)


def labels(sweep: Sweep, point: DesignPoint) -> tuple[str, ...]:
    """Say where a point is on every axis."""
    return tuple(axis.labels()[axis.index(point.at[axis.name])] for axis in sweep.axes)


def where(sweep: Sweep, point: DesignPoint) -> str:
    """Say where a point is on every axis, with the axes' names."""
    pairs = zip(sweep.axes, labels(sweep, point), strict=True)
    return ", ".join(f"{axis_title(axis)} {label}" for axis, label in pairs)


def format_area(square_millimetres: float) -> str:
    """Format an area with three significant digits."""
    if square_millimetres >= 1000:
        return f"{square_millimetres:,.0f} mm2"
    return f"{square_millimetres:#.3g}".rstrip(".") + " mm2"


def _figures(point: DesignPoint, unit: str) -> tuple[str, ...]:
    """List area, makespan, lower bound, gap, throughput, traffic and energy."""
    area = format_area(point.area)
    if (
        point.makespan is None
        or point.lower_bound is None
        or point.throughput is None
        or point.traffic_bytes is None
    ):
        return area, point.status, *(NOTHING,) * 5
    return (
        area,
        format_seconds(point.makespan),
        format_seconds(point.lower_bound),
        "optimal" if point.status == "optimal" else percent(point.gap or 0.0),
        format_rate(point.throughput, unit),
        format_bytes(point.traffic_bytes),
        format_joules(point.energy or 0.0),
    )


def remarks(sweep: Sweep) -> Iterator[str]:
    """Iterate over what the columns mean, and remarks on points that are missing, or have no
    plan."""
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
    """Make the tables of a target's memories and cores, with what the cost model takes them to
    cost."""
    rates = energy_rates(target)
    memories = [
        (
            m.name,
            format_bytes(m.capacity),
            format_bandwidth(m.read_bandwidth),
            format_bandwidth(m.write_bandwidth),
            f"{price * _PICO_PER_FEMTO:.3g} pJ",
        )
        for m, price in zip(target.memories, rates.memories, strict=False)
    ]
    figures = (">Array", ">Clock", ">Private buffer", ">MACs/cycle (int8)", ">Before each job")
    columns = ("Core", "Dataflow", *figures, ">Area (45 nm)")
    heads = ("Memory", ">Capacity", ">Read", ">Write", ">Energy per byte")
    cores = list(map(_core, target.cores))
    return [Table(heads, memories), Table(columns, cores)]


def _core(core: Core) -> tuple[str, ...]:
    return (
        core.name,
        str(core.style),
        NOTHING if core.style is Style.ROOFLINE else f"{core.rows} x {core.columns}",
        format_rate(core.clock, "Hz"),
        format_bytes(core.buffer) if core.buffer else NOTHING,
        f"{core.rows * core.columns * core.macs_per_cycle[8]:,.0f}",
        format_seconds(core.start_up) if core.start_up else NOTHING,
        f"{area(core):.3g} mm2",
    )
