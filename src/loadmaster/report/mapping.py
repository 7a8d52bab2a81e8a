"""The view of a mapping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from loadmaster.core.provenance import described, weakest
from loadmaster.core.units import (
    ENERGIES,
    TIMES,
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
from loadmaster.report.plan import mini_batches
from loadmaster.report.plan_charts import link_curve
from loadmaster.report.text import gap_text, if_known, percent, plural, search_rows, shortened
from loadmaster.report.timeline import total_over_time
from loadmaster.report.view import (
    ALL,
    BOTH,
    DRAWN,
    Facts,
    Figure,
    Figures,
    Legend,
    Line,
    Mark,
    Page,
    PagePart,
    Polyline,
    Scatter,
    Section,
    Shape,
    Share,
    Table,
    TimeAxis,
    TimelineChart,
    bounded,
    pairs,
    table,
)
from loadmaster.workloads.job import MiniBatch, NetworkTiming

_CORES_SHOWN = 32
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
    found: JobMapping | Sequence[JobMapping],
    pool: JobPool | None = None,
    bandwidth: float = 0.0,
    allocator: str = "demand",
    served: Sequence[MiniBatch] = (),
    timings: Iterable[NetworkTiming] = (),
) -> Page:
    """Make the page of a mapping, or of a Pareto front and its first mapping.

    Parameters
    ----------
    found
        One mapping, or several, which get a chart of their makespans and energies.
    pool
        The mapped jobs, if known.
    bandwidth
        Bytes/s that the cores share, divided among jobs by ``allocator``.
    served, timings
        Mini-batches, and the period and deadline of every network.
    """
    front = [found] if isinstance(found, JobMapping) else found
    first, several = front[0], len(front) > 1
    networks = tuple(dict.fromkeys(pool.network)) if pool else ()
    axis = TimeAxis(first.makespan, first.makespan, groups=networks)

    def sections() -> list[Section]:
        """Return the report's sections."""
        unit = rate_unit(pool.precisions if pool else ())
        # For a front, terminals show the table of all mappings.
        both, everywhere = (DRAWN, DRAWN) if several else (BOTH, ALL)
        figures = Figures(_figures(first, unit), weakest(first.costs).capitalize())
        fronts = _front(front, unit) if several else []
        batches = mini_batches(served, timings)
        met = [row[""] for row in batches.rows if row[""]]
        missed = f"{met.count('missed')} of {plural(len(met), 'deadline')} missed" if met else ""
        batches = replace(batches, rest=missed, limit=40)
        link = []
        if pool:
            rates = shared_bandwidth(first, pool, bandwidth, allocator)
            link.append(link_curve("Bandwidth that the cores share", rates, bandwidth))
        return [
            Section("", [figures], everywhere),
            Section("", [Line(first.limit and f"What limits: {first.limit}.")], DRAWN),
            Section("", [Line(_AGAINST_PLANS)], both),
            Section("", [Line(figures_rest_on(first.costs), "strong")]),
            Section("Pareto front", fronts, BOTH),
            Section(
                "Schedule and bandwidth", [Legend(), _schedule(first, pool, axis)], DRAWN, _HINT
            ),
            Section("", link),
            Section("Cores", [_cores(first)], both),
            Section("How it was found", [_totals(first)], both),
            Section("Mini-batches", [batches], BOTH),
        ]

    return Page(
        f"Mapping of {shortened(networks) or plural(len(first.jobs), 'job')}"
        f" to {plural(len(first.cores), 'core')}",
        f"Which core runs each job, and in which order; all share {format_bandwidth(bandwidth)}",
        sections,
        axis,
        f"{first.status}, makespan {format_seconds(first.makespan)},"
        f" {first.objective} {gap_text(first.status, first.value, first.lower_bound)}",
        lambda: first.as_json()["jobs"],
    )


def _figures(mapping: JobMapping, unit: str) -> list[Figure]:
    """Return the figures of a mapping: objective with its bound, times, rates and energy."""
    unit_of = {"energy": "J", "edp": "J s"}.get(mapping.objective)

    def shown(value: float) -> str:
        """Format a value of the objective."""
        return format_seconds(value) if unit_of is None else f"{value:.4g} {unit_of}"

    cycles = "" if mapping.cycles is None else f"{mapping.cycles:,} cycles"
    found = [
        bounded(f"Objective ({mapping.objective})", mapping.value, mapping.lower_bound, shown),
        Figure("Makespan", format_seconds(mapping.makespan), cycles),
    ]
    if mapping.throughput is not None:
        rate = format_rate(mapping.throughput, unit)
        found.append(Figure("Throughput", rate, plural(len(mapping.jobs), "job")))
    if mapping.energy is not None:
        found.append(Figure("Energy", format_joules(mapping.energy)))
    return found


def _schedule(mapping: JobMapping, pool: JobPool | None, axis: TimeAxis) -> TimelineChart:
    """Make a lane for each core; jobs have the colour of their network, or of their group."""
    columns = (column.tolist() for column in (mapping.core, mapping.start, mapping.end))
    colours = mapping.group.tolist()
    if pool is not None:
        colours = list(map(axis.groups.index, pool.network))

    def tip(job: int, core: int, seconds: float) -> Facts:
        """Return the tooltip of a job."""
        facts = {
            "name": mapping.jobs[job],
            "core": mapping.cores[core],
            "duration": format_seconds(seconds),
        }
        if pool is None:
            return facts
        alone = f"{format_seconds(pool.analysis.latency[job, core])} with enough bandwidth"
        return facts | {"network": pool.network[job], "alone": alone}

    shapes = [
        Shape(start, end, core, core + 1, partial(tip, job, core, end - start), colours[job])
        for job, (core, start, end) in enumerate(zip(*columns, strict=True))
    ]
    return TimelineChart("Schedule", mapping.cores, shapes)


def shared_bandwidth(
    mapping: JobMapping, pool: JobPool, bandwidth: float, allocator: str
) -> list[LinkSegment]:
    """Return the total bandwidth of all running jobs between consecutive events. O(jobs log
    jobs)."""
    asked = pool.analysis.bandwidth[np.arange(len(mapping.jobs)), mapping.core]
    if allocator == "even":
        asked = np.minimum(asked, bandwidth / len(mapping.cores))
    columns = (column.tolist() for column in (mapping.start, mapping.end, asked))
    segments = []
    for start, end, asked_for in total_over_time(zip(*columns, strict=True)):
        rate = min(max(asked_for, 0.0), bandwidth)
        segments.append(LinkSegment(start, end, rate, rate / bandwidth))
    return segments


def _front(front: Sequence[JobMapping], unit: str) -> list[PagePart]:
    """Return the chart and the table of makespan and energy of every mapping of a front."""
    rows, marks = [], []
    for number, mapping in enumerate(front):
        makespan = format_seconds(mapping.makespan)
        energy = if_known(mapping.energy, format_joules, "")
        rate = if_known(mapping.throughput, partial(format_rate, unit=unit), "")
        if mapping.energy is not None:
            facts = {"makespan": makespan, "energy": energy}
            marks.append(Mark(mapping.makespan, mapping.energy, f"mapping {number}", facts))
        costs = str(weakest(mapping.costs))
        rows.append((str(number), makespan, energy, rate, mapping.status, costs))
    path = Polyline([(mark.x, mark.y) for mark in marks])
    remark = "The schedule below is that of the first mapping."
    units = TIMES, ENERGIES
    chart = Scatter("", "makespan", "energy", marks, [path], units=units, remark=remark)
    heads = "Mapping", ">Makespan", ">Energy", ">Throughput", "Status", "Costs"
    return [chart, table(heads, rows)]


def _cores(mapping: JobMapping) -> Table:
    """Return the table of cores, with the share of time each is busy and its first jobs."""
    whole = mapping.makespan or 1.0
    rows = []
    for core, name in enumerate(mapping.cores):
        mine = np.flatnonzero(mapping.core == core)
        busy = float((mapping.end[mine] - mapping.start[mine]).sum() / whole)
        mine = mine[np.argsort(mapping.start[mine], kind="stable")]
        rows.append(
            {
                "Core": name,
                ">Jobs": f"{len(mine):,}",
                ">Busy": Share(busy),
                "~First jobs": shortened([mapping.jobs[job] for job in mine]),
            }
        )
    return Table(rows, limit=_CORES_SHOWN, width=24)


def _totals(mapping: JobMapping) -> Table:
    """Return the table of how the mapping was found: jobs, costs, bound and samples."""
    groups = int(mapping.group.max(initial=0)) + 1
    jobs = f"{len(mapping.jobs)} on {len(mapping.cores)} cores"
    rows = search_rows(mapping, mapping.seconds) | {
        "Jobs": jobs + (f", in {groups} groups" if groups > 1 else ""),
        "Costs": described(mapping.costs),
        "Lower bound": f"{mapping.limit}, gap {percent(mapping.gap)}",
        "Samples": f"{mapping.samples:,}",
    }
    return pairs(rows.items())
