"""The HTML page of two plans: their figures side by side, and their schedules, links and memories
over one time axis."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report import figures
from loadmaster.report.bandwidth import draw_link
from loadmaster.report.charts import Canvas, time_canvas
from loadmaster.report.colours import PALETTE
from loadmaster.report.comparison import COLUMNS, kinds, rows, signed
from loadmaster.report.html import hide_together
from loadmaster.report.legend import legend
from loadmaster.report.memory_map import draw_map
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.schedule import draw_schedule
from loadmaster.report.tables import card, table
from loadmaster.report.text import NOTHING, Html, printable, to_html
from loadmaster.report.timeline import last_instant

_HINT = (
    "The first plan above the second, over one time axis. Drag to pan, hold Ctrl and scroll to"
    " zoom: all charts move together, with arrows, + and - too, and 0 resets. Click a network to"
    " hide it everywhere."
)
_KINDS = 20


def render_comparison(first: PlanRecord, second: PlanRecord) -> str:
    """Render the whole page; the same plans give the same text."""
    plans, page = (first, second), Page()
    names = dict.fromkeys(network.name for plan in plans for network in plan.networks)
    span = max(plan.metrics.makespan.value for plan in plans)
    on = time_canvas(
        span,
        max(map(last_instant, plans)),
        {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)},
    )
    by_kind = table(
        "Time of cores by kind of operator",
        COLUMNS,
        [row.cells() for row in kinds(first, second)[:_KINDS]],
    )
    sections = [
        section("", _headline(first, second), _about(plans)),
        section("Figures", table("Figures", COLUMNS, [row.cells() for row in rows(first, second)])),
        section(
            "Schedules",
            hint(_HINT),
            legend(on.colours),
            *(_titled(plan, page.place(draw_schedule(plan, on))) for plan in plans),
        ),
        *_memories(plans, on, page),
        section("Time of cores by kind of operator", by_kind),
    ]
    hide_together(on)
    return in_page("Two plans", " and ".join(map(figures.title, plans)), sections, page)


def _headline(first: PlanRecord, second: PlanRecord) -> Html:
    shown = [
        row
        for row in rows(first, second)
        if row.key in ("makespan", "inferences_per_second", "energy")
    ]
    cards = [
        card(
            name,
            NOTHING if row.change is None else signed(row.change),
            f"first {one}, second {other}",
        )
        for row in shown
        for name, one, other, _ in [row.cells()]
    ]
    return Html(f"<div class=cards>{''.join(cards)}</div>")


def _about(plans: Sequence[PlanRecord]) -> Html:
    lines = [
        f"{which}: {figures.title(plan)}; {figures.verdict(plan)}"
        for which, plan in zip(("First", "Second"), plans, strict=True)
    ]
    items = "".join(f"<li>{to_html(line)}</li>" for line in lines)
    return Html(
        f"<ul class=notes>{items}</ul><p><strong>{to_html(figures.figures_rest_on(plans[0].costs))}</strong></p>"
    )


def _titled(plan: PlanRecord, drawn: Html) -> Html:
    return Html(f"<h3>{to_html(figures.title(plan))}, {to_html(plan.status)}</h3>{drawn}")


def _memories(plans: Sequence[PlanRecord], on: Canvas, page: Page) -> list[Html]:
    """Make a section for each memory with its link and map in both plans."""
    names = dict.fromkeys(memory.name for plan in plans for memory in plan.target.memories)
    sections = []
    for name in names:
        having = [
            (plan, memory)
            for plan in plans
            for memory in plan.target.memories
            if memory.name == name
        ]
        links = [_titled(plan, page.place(draw_link(plan, memory, on))) for plan, memory in having]
        maps = [_titled(plan, page.place(draw_map(plan, memory, on))) for plan, memory in having]
        sections.append(section(f"Memory {printable(name)}", *links, *maps))
    return sections
