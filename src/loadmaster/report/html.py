"""The report of a plan: figures, tables and charts."""

from __future__ import annotations

from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report import figures, tables
from loadmaster.report.bandwidth import draw_link
from loadmaster.report.charts import Canvas, canvas
from loadmaster.report.convergence import draw_convergence, draw_lateness
from loadmaster.report.legend import legend
from loadmaster.report.memory_map import draw_map
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.schedule import draw_schedule
from loadmaster.report.text import Html, to_html

SCHEDULE_HINT = (
    "The paler a job, the longer it waits for memory. Drag to pan, hold Ctrl and scroll to zoom in time: all charts move together. "
    "Click a network in the legend to hide it everywhere; the circular arrow in a chart's corner resets the view."
)
MAP_HINT = "What jobs produce is drawn in full colour, weights and inputs are pale. Colours are those of the networks above."


def render_page(plan: PlanRecord) -> str:
    """The whole report; the same plan gives the same text."""
    on, page = canvas(plan), Page()
    sections = (*_plan_sections(plan), *_chart_sections(plan, on, page))
    _hide_together(on)
    return in_page(figures.title(plan), plan.target.description, sections, page)


def _plan_sections(plan: PlanRecord) -> list[Html]:
    """What can be said without a chart."""
    about = Html(f"<p>{to_html(figures.verdict(plan).capitalize())}. <strong>{to_html(figures.ESTIMATES)}</strong></p>{tables.notes(plan)}")
    return [
        section("", tables.headline(plan), about),
        section("Networks", tables.networks(plan)),
        *([section("Mini-batches", tables.mini_batches(plan))] if plan.timings else []),
        section("Memories", tables.memories(plan)),
        section("Cores", tables.cores(plan)),
    ]


def _chart_sections(plan: PlanRecord, on: Canvas, page: Page) -> list[Html]:
    memories = plan.target.memories
    schedule = section(
        "Schedule and bandwidth",
        hint(SCHEDULE_HINT),
        legend(on.colours),
        page.place(draw_schedule(plan, on)),
        *(page.place(draw_link(plan, m, on)) for m in memories),
    )
    maps = section("Memory over time", hint(MAP_HINT), *(page.place(draw_map(plan, m, on)) for m in memories))
    drawn = [page.place(draw_convergence(plan))] if len(plan.search) > 1 else []
    if len(plan.search) > 1 and any(step.lateness for step in plan.search):
        drawn.append(page.place(draw_lateness(plan, on)))
    search = [section("Search", *drawn)] if drawn else []
    private = [section("Private buffers", tables.buffers(plan))] if any(core.buffer for core in plan.target.cores) else []
    peaks = [section(f"At the peak of {m.name}", tables.peak(plan, m, on.unit)) for m in memories]
    return [schedule, maps, *search, *private, section("Traffic", tables.traffic(plan)), section("Energy", tables.energy(plan)), *peaks]


def _hide_together(on: Canvas) -> None:
    """The legend hides a network in the schedule; the other charts follow."""
    for first, *others in on.drawn.values():
        for other in others:
            first.js_link("visible", other, "visible")
