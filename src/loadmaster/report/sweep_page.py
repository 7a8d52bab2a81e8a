"""The HTML page of a sweep: what to build, Pareto fronts, throughput over the axes, and what it all
rests on."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.core.units import format_bytes, format_count, format_joules, format_seconds
from loadmaster.planning.sweep.design_space import Sweep
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.machine import machine_tables
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.sweep import (
    axis_title,
    columns,
    format_area,
    point_rows,
    remarks,
    title,
    where,
)
from loadmaster.report.sweep_charts import draw_energy, draw_front, draw_map
from loadmaster.report.tables import card, table
from loadmaster.report.text import Html, printable, to_html

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


def render_sweep(sweep: Sweep) -> str:
    """Render the whole page; the same sweep gives the same text."""
    page = Page()
    notes = "".join(f"<li>{to_html(remark)}</li>" for remark in remarks(sweep))
    about = Html(
        f"{_cards(sweep)}<p><strong>{to_html(figures_rest_on(sweep.costs))}</strong></p><ul"
        f" class=notes>{notes}</ul>"
    )
    fronts = (
        "Each point is a whole plan; the bar below it ends at its proven lower bound, which no plan"
        " for that machine can go below."
    )
    sections = [
        section("", about),
        section("Time over area", hint(fronts), page.place(draw_front(sweep))),
        section("Energy over time", page.place(draw_energy(sweep))),
        section("Throughput over the axes", page.place(draw_map(sweep))),
        section("Points", table("Points", columns(sweep), point_rows(sweep))),
        section("Networks", _networks(sweep)),
        section(
            "The machine that was varied",
            hint(f"{sweep.target.description}. {_varied(sweep)}"),
            machine_tables(sweep.target),
        ),
        section("How points were planned", table("Options", ("Option", ">Value"), _options(sweep))),
    ]
    return in_page(title(sweep), "What other machines would be worth", sections, page)


def _cards(sweep: Sweep) -> Html:
    """Make cards of the point to build and of the ends of the range."""
    planned = [point for point in sweep.points if point.planned]
    if not planned:
        return Html("")
    chosen = [
        ("Fastest", min(planned, key=lambda p: (p.makespan, p.area))),
        ("Least area", min(planned, key=lambda p: (p.area, p.makespan))),
    ]
    chosen.append(("Least energy", min(planned, key=lambda p: (p.energy, p.area))))
    best = sweep.smallest()
    if best is not None:
        chosen.insert(0, ("Least area within the limits", best))
    return Html(
        "<div"
        f" class=cards>{''.join(card(name, _reached(p), where(sweep, p)) for name, p in chosen)}</div>"
    )


def _reached(point: DesignPoint) -> str:
    return (
        f"{format_seconds(point.makespan or 0.0)}, {format_joules(point.energy or 0.0)},"
        f" {format_area(point.area)}"
    )


def _networks(sweep: Sweep) -> Html:
    rows = (
        (n.name, n.precision, n.batch, format_count(n.macs), format_bytes(n.weight_bytes))
        for n in sweep.networks
    )
    return table("Networks", ("Network", "Precision", ">Batch", ">MACs", ">Weights"), rows)


def _varied(sweep: Sweep) -> str:
    return f"Varied: {', '.join(map(axis_title, sweep.axes))}; all else as below."


def _options(sweep: Sweep) -> Sequence[tuple[str, str]]:
    shown = ((name, sweep.options.get(key)) for key, name in _OPTIONS.items())
    return [(name, printable(str(value))) for name, value in shown if value not in (None, {})]
