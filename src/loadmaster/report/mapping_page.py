"""The HTML report of a mapping: the schedule of every core, the bandwidth that jobs share, and a
front of mappings if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, Range1d
from bokeh.plotting import figure

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
from loadmaster.report.bandwidth import draw_segments
from loadmaster.report.charts import INK, Canvas, chart, framed, hover, rectangles, time_canvas
from loadmaster.report.colours import MERGED, PALETTE
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.legend import legend, legend_name
from loadmaster.report.merging import MAX_SHAPES, merge_neighbours
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.tables import card, meter, table
from loadmaster.report.text import (
    Html,
    chart_text,
    clipped,
    percent,
    plural,
    printable,
    shortened,
    to_html,
)

_HINT = (
    "Drag to pan, hold Ctrl and scroll to zoom in time: both charts move together, with arrows, +"
    " and - too, and 0 resets. Click a network to hide it."
)


def render_mapping(
    front: Sequence[JobMapping], pool: JobPool, bandwidth: float, allocator: str = "demand"
) -> str:
    """Render the page of a mapping, or of the first of a Pareto front; the same mapping gives the
    same text.

    Parameters
    ----------
    front
        One mapping, or several with a chart of their makespans and energies.
    pool
        The jobs that were mapped.
    bandwidth
        Bytes/s that the cores share, as ``allocator`` has it.
    """
    first, page = front[0], Page()
    names = list(dict.fromkeys(pool.network))
    on = time_canvas(
        first.makespan,
        first.makespan,
        {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)},
    )
    segments = _traffic(first, pool, bandwidth, allocator)
    schedule = section(
        "Schedule and bandwidth",
        hint(_HINT),
        legend(on.colours),
        page.place(_draw_schedule(first, pool, on)),
        page.place(draw_segments("Bandwidth that the cores share", segments, bandwidth, on)),
    )
    fronts = []
    if len(front) > 1:
        fronts.append(
            section(
                "Pareto front",
                page.place(_draw_front(front)),
                _front_table(front, rate_unit(pool.precisions)),
            )
        )
    about = Html(f"<p><strong>{to_html(figures_rest_on(first.costs))}</strong></p>")
    sections = [
        section("", _headline(first, pool), about),
        *fronts,
        schedule,
        section("Cores", _cores(first)),
    ]
    title = (
        f"{shortened([printable(name) for name in names])} on {plural(len(first.cores), 'core')}"
    )
    return in_page(
        title,
        "Which core runs each job, and in which order, when all share"
        f" {format_bandwidth(bandwidth)}",
        sections,
        page,
    )


def _headline(mapping: JobMapping, pool: JobPool) -> Html:
    joules = {"energy": "J", "edp": "J s"}.get(mapping.objective)
    bound = (
        format_seconds(mapping.lower_bound)
        if joules is None
        else f"{mapping.lower_bound:.4g} {joules}"
    )
    cards = [
        card(
            "Makespan",
            format_seconds(mapping.makespan),
            "" if mapping.cycles is None else f"{mapping.cycles:,} cycles",
        ),
        card(
            f"Bound of {mapping.objective}",
            bound,
            f"{percent(mapping.gap)} away; what limits: {mapping.limit}",
        ),
        card(
            "Status",
            mapping.status,
            f"{mapping.strategy}, seed {mapping.seed}, {plural(mapping.samples, 'sample')}",
        ),
    ]
    if mapping.throughput is not None:
        cards.append(
            card(
                "Throughput",
                format_rate(mapping.throughput, rate_unit(pool.precisions)),
                plural(len(mapping.jobs), "job"),
            )
        )
    if mapping.energy is not None:
        cards.append(card("Energy", format_joules(mapping.energy), ""))
    return Html(f"<div class=cards>{''.join(cards)}</div>")


def _draw_schedule(mapping: JobMapping, pool: JobPool, on: Canvas) -> tuple[figure, str]:
    """Draw a lane for each core and a rectangle for each job, coloured by network; the shortest are
    merged if there are too many."""
    rows = len(mapping.cores)
    height = 92 + rows * max(16, min(40, 640 // max(1, rows)))
    plot = chart(on, "Schedule", height, Range1d(start=rows - 0.5, end=-0.5), "")
    plot.yaxis.ticker = FixedTicker(ticks=list(range(rows)))
    plot.yaxis.major_label_overrides = {
        lane: chart_text(clipped(name, 19)) for lane, name in enumerate(mapping.cores)
    }
    plot.yaxis.update(major_tick_line_color=None, axis_line_color=None)
    plot.ygrid.grid_line_color = None
    order = np.lexsort((mapping.start, mapping.core)).tolist()
    lanes, starts, ends = (
        values[order].tolist() for values in (mapping.core, mapping.start, mapping.end)
    )
    groups = [
        [order[i] for i in group] for group in merge_neighbours(lanes, starts, ends, MAX_SHAPES)
    ]
    renderers = []
    for number, (name, colour) in enumerate(on.colours.items()):
        mine = [group for group in groups if len(group) == 1 and pool.network[group[0]] == name]
        renderer = rectangles(plot, _columns(mapping, pool, on, mine), colour, 0.85)
        renderer.name = legend_name(number)
        renderers.append(renderer)
    hover(
        plot,
        renderers,
        "name",
        (
            ("network", "network"),
            ("core", "core"),
            ("time", "time"),
            ("duration", "duration"),
            ("alone", "alone"),
        ),
    )
    merged = [group for group in groups if len(group) > 1]
    if not merged:
        return plot, ""
    hover(
        plot,
        [rectangles(plot, _columns(mapping, pool, on, merged), MERGED)],
        "name",
        (("core", "core"), ("time", "time")),
    )
    return (
        plot,
        (
            f"The {plural(sum(map(len, merged)), 'shortest job')} are drawn as"
            f" {plural(len(merged), 'grey rectangle')}."
        ),
    )


def _columns(
    mapping: JobMapping, pool: JobPool, on: Canvas, groups: Sequence[Sequence[int]]
) -> dict[str, list[object]]:
    first = [group[0] for group in groups]
    start = [float(mapping.start[group[0]]) for group in groups]
    end = [float(max(mapping.end[job] for job in group)) for group in groups]
    return {
        "left": [on.unit.of(instant) for instant in start],
        "right": [on.unit.of(instant) for instant in end],
        "top": [float(mapping.core[job]) - 0.38 for job in first],
        "bottom": [float(mapping.core[job]) + 0.38 for job in first],
        "name": [
            printable(mapping.jobs[group[0]]) if len(group) == 1 else f"{len(group):,} jobs merged"
            for group in groups
        ],
        "network": [printable(pool.network[job]) for job in first],
        "core": [printable(mapping.cores[mapping.core[job]]) for job in first],
        "time": [on.unit.span(a, b) for a, b in zip(start, end, strict=True)],
        "duration": [format_seconds(b - a) for a, b in zip(start, end, strict=True)],
        "alone": [
            f"{format_seconds(float(pool.analysis.latency[job, mapping.core[job]]))} with enough"
            " bandwidth"
            for job in first
        ],
    }


def _traffic(
    mapping: JobMapping, pool: JobPool, bandwidth: float, allocator: str
) -> list[LinkSegment]:
    """Sum the bandwidth that jobs get between one event and the next. O(jobs log jobs)."""
    asked = pool.analysis.bandwidth[np.arange(len(mapping.jobs)), mapping.core]
    if allocator == "even":
        asked = np.minimum(asked, bandwidth / len(mapping.cores))
    instants = np.concatenate((mapping.start, mapping.end))
    change = np.concatenate((asked, -asked))
    order = np.argsort(instants, kind="stable")
    times, last = np.unique(instants[order][::-1], return_index=True)
    together = np.cumsum(change[order])[len(order) - 1 - last]
    got = np.minimum(np.maximum(together, 0.0), bandwidth)
    spans = zip(pairwise(times.tolist()), got[:-1].tolist(), strict=True)
    return [LinkSegment(a, b, rate, rate / bandwidth) for (a, b), rate in spans if b > a]


def _draw_front(front: Sequence[JobMapping]) -> tuple[figure, str]:
    on = time_canvas(max(mapping.makespan for mapping in front), 1.0, {})
    known = [mapping for mapping in front if mapping.energy is not None]
    times, joules = (
        [on.unit.of(mapping.makespan) for mapping in known],
        [mapping.energy or 0.0 for mapping in known],
    )
    right, top = (
        Range1d(start=0, end=1.1 * max(values, default=1.0)) for values in (times, joules)
    )
    plot = framed("Pareto front", 300, right, top, f"makespan ({on.unit.name})", "energy (J)")
    source = ColumnDataSource(
        {
            "x": times,
            "y": joules,
            "name": [f"mapping {number}" for number in range(len(known))],
            "makespan": [format_seconds(mapping.makespan) for mapping in known],
            "energy": [f"{value:.4g} J" for value in joules],
        }
    )
    plot.line("x", "y", source=source, line_color=INK, line_width=1)
    marks = plot.scatter("x", "y", source=source, size=9, color=PALETTE[0])
    hover(plot, [marks], "name", (("makespan", "makespan"), ("energy", "energy")))
    return plot, "The schedule below is that of the first mapping."


def _front_table(front: Sequence[JobMapping], unit: str) -> Html:
    rows = [
        (
            str(number),
            format_seconds(mapping.makespan),
            "" if mapping.energy is None else f"{mapping.energy:.4g} J",
            "" if mapping.throughput is None else format_rate(mapping.throughput, unit),
            mapping.status,
        )
        for number, mapping in enumerate(front)
    ]
    return table("Pareto front", ("Mapping", ">Makespan", ">Energy", ">Throughput", "Status"), rows)


def _cores(mapping: JobMapping) -> Html:
    busy = np.bincount(
        mapping.core, weights=mapping.end - mapping.start, minlength=len(mapping.cores)
    )
    jobs = np.bincount(mapping.core, minlength=len(mapping.cores))
    whole = mapping.makespan or 1.0
    rows = [
        (name, f"{count:,}", meter(share / whole))
        for name, count, share in zip(mapping.cores, jobs.tolist(), busy.tolist(), strict=True)
    ]
    return table("Cores", ("Core", ">Jobs", "Busy"), rows)
