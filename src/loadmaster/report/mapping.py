"""A mapping's page, its summary in the terminal, and its view in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.core.provenance import described, weakest
from loadmaster.core.units import (
    format_bandwidth,
    format_joules,
    format_rate,
    format_seconds,
    rate_unit,
)
from loadmaster.cost.job_pool import JobPool
from loadmaster.mapping.answer import JobMapping
from loadmaster.planning.plan_records import LinkSegment
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.plan_charts import link_curve
from loadmaster.report.plan_tables import mini_batches
from loadmaster.report.text import (
    TIMES,
    largest_unit,
    plural,
    reached,
    search_rows,
    shortened,
)
from loadmaster.report.timeline import total_over_time
from loadmaster.report.view import (
    Axis,
    Figure,
    Figures,
    Legend,
    Line,
    Mark,
    Page,
    Part,
    Path,
    Scatter,
    Section,
    Share,
    Span,
    Table,
    Timeline,
    View,
    bounded,
)
from loadmaster.workloads.job import MiniBatch, NetworkTiming

_CORES_SHOWN = 32
_JOBS_SHOWN = 4
_NETWORKS_SHOWN = 40
_HINT = (
    "Drag to pan, hold Ctrl and scroll to zoom in time: both charts move together, with arrows, +"
    " and - too, and 0 resets. Click a network to hide it."
)


_AGAINST_PLANS = (
    "Status and bound are for mapping alone: each job reads and writes all its operands over the"
    " shared link. loadmaster plan keeps tensors in the fast memory and cuts operators, so its"
    " makespan may be below this optimum."
)


def mapping_page(
    front: Sequence[JobMapping], pool: JobPool, bandwidth: float, allocator: str = "demand"
) -> Page:
    """Make the page of a mapping, or of the first of a Pareto front.

    Parameters
    ----------
    front
        One mapping, or several with a chart of their makespans and energies.
    pool
        The jobs that were mapped.
    bandwidth
        Bytes/s that the cores share, as ``allocator`` has it.
    """
    first, unit = front[0], rate_unit(pool.precisions)
    axis = Axis(first.makespan, first.makespan, groups=tuple(dict.fromkeys(pool.network)))
    name = f"{shortened(axis.groups)} on {plural(len(first.cores), 'core')}"
    segments = shared_bandwidth(first, pool, bandwidth, allocator)
    curve = link_curve("Bandwidth that the cores share", segments, bandwidth)
    fronts = [_front_chart(front), _front_table(front, unit)] if len(front) > 1 else []
    charts = [Line(_HINT, "hint"), Legend(), _schedule(first, pool, axis), curve]
    head = [
        Figures(_figures(first, unit)),
        Line(f"What limits: {first.limit}." if first.limit else ""),
        Line(_AGAINST_PLANS),
        Line(figures_rest_on(first.costs), "strong"),
    ]
    sections = [
        Section("", head),
        Section("Pareto front", fronts),
        Section("Schedule and bandwidth", charts),
        Section("Cores", [_cores(first)]),
    ]
    shared = format_bandwidth(bandwidth)
    about = f"Which core runs each job, and in which order, when all share {shared}"
    return Page(name, about, sections, axis)


def _figures(mapping: JobMapping, unit: str) -> list[Figure]:
    """List the objective with its bound, times, rates and energy, and the status."""
    unit_of = {"energy": "J", "edp": "J s"}.get(mapping.objective)
    spent = mapping.makespan

    def shown(value: float) -> str:
        return format_seconds(value) if unit_of is None else f"{value:.4g} {unit_of}"

    cycles = "" if mapping.cycles is None else f"{mapping.cycles:,} cycles"
    how = f"{mapping.strategy}, seed {mapping.seed}, {plural(mapping.samples, 'sample')}"
    found = [
        bounded(f"Objective ({mapping.objective})", mapping.value, mapping.lower_bound, shown),
        Figure("Makespan", format_seconds(spent), "", cycles),
    ]
    if mapping.throughput is not None:
        rate = format_rate(mapping.throughput, unit)
        found.append(Figure("Throughput", rate, distance=plural(len(mapping.jobs), "job")))
    if mapping.energy is not None:
        found.append(Figure("Energy", format_joules(mapping.energy)))
    return [*found, Figure("Status", mapping.status, distance=how)]


def _schedule(mapping: JobMapping, pool: JobPool | None, axis: Axis) -> Timeline:
    """Make a lane for each core; jobs have the colour of their network, or of their group."""
    numbers = {name: number for number, name in enumerate(axis.groups)}
    colours = mapping.group.tolist() if pool is None else [numbers[name] for name in pool.network]
    columns = mapping.core.tolist(), mapping.start.tolist(), mapping.end.tolist(), colours
    spans = [Span(*span) for span in zip(*columns, strict=True)]

    def tip(job: int) -> dict[str, str]:
        if pool is None:
            return {"name": mapping.jobs[job]}
        alone = float(pool.analysis.latency[job, mapping.core[job]])
        return {
            "name": mapping.jobs[job],
            "network": pool.network[job],
            "core": mapping.cores[mapping.core[job]],
            "duration": format_seconds(float(mapping.end[job] - mapping.start[job])),
            "alone": f"{format_seconds(alone)} with enough bandwidth",
        }

    return Timeline("Schedule", mapping.cores, spans, tip)


def shared_bandwidth(
    mapping: JobMapping, pool: JobPool, bandwidth: float, allocator: str
) -> list[LinkSegment]:
    """List the bandwidth that jobs get together between one event and the next. O(jobs log
    jobs)."""
    asked = pool.analysis.bandwidth[np.arange(len(mapping.jobs)), mapping.core]
    if allocator == "even":
        asked = np.minimum(asked, bandwidth / len(mapping.cores))
    columns = (mapping.start, mapping.end, asked)
    parts = zip(*(column.tolist() for column in columns), strict=True)
    got = (
        (start, end, min(max(rate, 0.0), bandwidth))
        for start, end, rate in total_over_time(parts).triples(mapping.makespan)
    )
    return [LinkSegment(*step, step[2] / bandwidth) for step in got if step[1] > step[0]]


def _front_chart(front: Sequence[JobMapping]) -> Scatter:
    scale, unit = largest_unit(max(mapping.makespan for mapping in front), TIMES)
    marks = [
        Mark(
            mapping.makespan / scale,
            mapping.energy,
            f"mapping {number}",
            {"makespan": format_seconds(mapping.makespan), "energy": f"{mapping.energy:.4g} J"},
        )
        for number, mapping in enumerate(front)
        if mapping.energy is not None
    ]
    path = Path([(mark.x, mark.y) for mark in marks])
    remark = "The schedule below is that of the first mapping."
    return Scatter("", f"makespan ({unit})", "energy (J)", marks, [path], remark=remark, height=300)


def _front_table(front: Sequence[JobMapping], unit: str) -> Table:
    rows = [
        (
            str(number),
            format_seconds(mapping.makespan),
            "" if mapping.energy is None else f"{mapping.energy:.4g} J",
            "" if mapping.throughput is None else format_rate(mapping.throughput, unit),
            mapping.status,
            str(weakest(mapping.costs)),
        )
        for number, mapping in enumerate(front)
    ]
    columns = ("Mapping", ">Makespan", ">Energy", ">Throughput", "Status", "Costs")
    return Table(columns, rows)


def _cores(mapping: JobMapping) -> Table:
    whole, rows = mapping.makespan or 1.0, []
    for core, name in enumerate(mapping.cores):
        mine = np.flatnonzero(mapping.core == core)
        busy = float((mapping.end[mine] - mapping.start[mine]).sum() / whole)
        mine = mine[np.argsort(mapping.start[mine], kind="stable")]
        first = ", ".join(mapping.jobs[job] for job in mine[:_JOBS_SHOWN].tolist())
        more = ", ..." * (len(mine) > _JOBS_SHOWN)
        rows.append((name, f"{len(mine):,}", Share(busy), first + more))
    return Table(("Core", ">Jobs", ">Busy", "~First jobs"), rows)


def mapping_summary(mapping: JobMapping, unit: str) -> list[Part]:
    """Make tables of totals, then of every core; ``unit`` is that of arithmetic rates."""
    groups = int(mapping.group.max(initial=0)) + 1
    jobs = f"{len(mapping.jobs)} on {len(mapping.cores)} cores"
    rows = {
        **search_rows(mapping, mapping.seconds),
        "Jobs": jobs + (f", in {groups} groups" if groups > 1 else ""),
        "Costs": described(mapping.costs),
        "Lower bound": f"{mapping.limit}, gap {mapping.gap:.3%}",
        "Samples": f"{mapping.samples:,}",
    }
    totals, cores = Table(("", "~"), list(rows.items())), _cores(mapping)
    figures = Figures(_figures(mapping, unit)[:-1], weakest(mapping.costs).capitalize())
    brief = cores.brief(limit=_CORES_SHOWN)
    return [totals, figures, brief, Line(_AGAINST_PLANS)]


def front_summary(front: Sequence[JobMapping], unit: str) -> list[Part]:
    """Make a table of the mappings of a Pareto front; ``unit`` is that of arithmetic rates."""
    return [_front_table(front, unit)]


def latency_summary(
    served: Sequence[MiniBatch], timings: Mapping[str, NetworkTiming]
) -> list[Part]:
    """Make a row for every mini-batch of every network, if any has times, and say how many came too
    late."""
    if not served:
        return []
    missed = sum(each.missed for each in served)
    table = mini_batches(served[:_NETWORKS_SHOWN], timings.values())
    return [replace(table, rest=f"{missed} of {len(served)} deadlines missed")]


def view(mapping: JobMapping) -> View:
    """Make the view of a mapping in notebooks."""
    far = reached(mapping.status, mapping.value, mapping.lower_bound)

    def pictures() -> Iterable[Timeline]:
        yield _schedule(mapping, None, Axis(mapping.makespan))

    title = f"Mapping of {plural(len(mapping.jobs), 'job')} to {plural(len(mapping.cores), 'core')}"
    headline = (
        f"{mapping.status}, makespan {format_seconds(mapping.makespan)}, {mapping.objective} {far}"
    )
    notes = (f"The bound is set by {mapping.limit}.",) if mapping.limit else ()
    shown = _figures(mapping, "OP/s")
    return View(title, headline, shown, pictures, lambda: mapping.as_json()["jobs"], notes)
