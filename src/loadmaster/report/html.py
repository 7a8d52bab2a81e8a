"""The HTML report of a plan: figures, tables and charts."""

from __future__ import annotations

from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report import figures, tables
from loadmaster.report.bandwidth import draw_link
from loadmaster.report.charts import Canvas, canvas
from loadmaster.report.convergence import draw_convergence, draw_lateness
from loadmaster.report.cuts import cuts_of
from loadmaster.report.legend import legend
from loadmaster.report.memory_map import draw_map
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.schedule import draw_schedule
from loadmaster.report.stack_chart import draw_stack
from loadmaster.report.text import Html, to_html
from loadmaster.workloads.graph import uncounted

SCHEDULE_HINT = (
    "The paler a job, the longer it waits for memory. Pieces of one operator have one shade of"
    " their network's colour. Drag to pan, hold Ctrl and scroll to zoom in time: all charts move"
    " together, with arrows, + and - too, and 0 resets. Click a network in the legend to hide it"
    " everywhere; the circular arrow in a chart's corner resets the view."
)
LIMITS_HINT = (
    "Where most of the time goes is what to change: a link that cores wait for wants more bandwidth"
    " or less traffic; arrays filled in part want another dataflow or shape; cores without a job"
    " want more mini-batches or fewer cores. loadmaster plan --what-if plans such changes."
)
STACKS_DRAWN = 3
STACK_HINT = (
    "A stack runs band by band. Each rectangle is a band of an operator's result, from when it is"
    " written to when it is last read: what lies one above the other in a lane is in memory at"
    " once. Of the first mini-batch; the stacks with the most bytes between operators."
)
MAP_HINT = (
    "What jobs produce is drawn in full colour, weights and inputs are pale. Colours are those of"
    " the networks above."
)


def render_page(plan: PlanRecord) -> str:
    """Render the whole report; the same plan gives the same text."""
    on, page = canvas(plan), Page()
    sections = (*_plan_sections(plan), *_chart_sections(plan, on, page))
    hide_together(on)
    return in_page(figures.title(plan), plan.target.description, sections, page)


def _plan_sections(plan: PlanRecord) -> list[Html]:
    """Make the sections without charts."""
    gain = "".join(f"<p><strong>{to_html(line)}</strong></p>" for line in figures.gain(plan))
    rest_on = to_html(figures.figures_rest_on(plan.costs))
    about = Html(
        f"{gain}<p>{to_html(_capitalised(figures.verdict(plan)))}."
        f" {rest_on}</p>{tables.notes(plan)}"
    )
    unknown = uncounted(kind for network in plan.networks for kind in network.unknown)
    warning = Html(f"<p><strong>{to_html(unknown)}</strong></p>" if unknown else "")
    return [
        section("", warning, tables.headline(plan), about),
        section("What limits it", hint(LIMITS_HINT), tables.limits(plan)),
        section("Networks", tables.networks(plan)),
        *([section("Mini-batches", tables.mini_batches(plan))] if plan.timings else []),
        section("Memories", tables.memories(plan)),
        section("Cores", tables.cores(plan)),
    ]


def _capitalised(text: str) -> str:
    """The text with a capital at its beginning, and names in it as they are."""
    return text[:1].upper() + text[1:]


def _chart_sections(plan: PlanRecord, on: Canvas, page: Page) -> list[Html]:
    memories = plan.target.memories
    schedule = section(
        "Schedule and bandwidth",
        hint(SCHEDULE_HINT),
        legend(on.colours),
        page.place(draw_schedule(plan, on)),
        *(page.place(draw_link(plan, m, on)) for m in memories),
    )
    maps = section(
        "Memory over time", hint(MAP_HINT), *(page.place(draw_map(plan, m, on)) for m in memories)
    )
    drawn = [page.place(draw_convergence(plan))] if len(plan.search) > 1 else []
    if len(plan.search) > 1 and any(step.lateness for step in plan.search):
        drawn.append(page.place(draw_lateness(plan, on)))
    search = [section("Search", *drawn)] if drawn else []
    private = (
        [section("Private buffers", tables.buffers(plan))]
        if any(core.buffer for core in plan.target.cores)
        else []
    )
    peaks = [section(f"At the peak of {m.name}", tables.peak(plan, m, on.unit)) for m in memories]
    return [
        schedule,
        *_cuts(plan, on, page),
        maps,
        *search,
        *private,
        section("Traffic", tables.traffic(plan)),
        section("Energy", tables.energy(plan)),
        *peaks,
    ]


def _cuts(plan: PlanRecord, on: Canvas, page: Page) -> list[Html]:
    """Make the section of operators in pieces, with a chart for each of the stacks that hold
    most."""
    cuts = cuts_of(plan)
    if not cuts.operators:
        return []
    left_out = len(cuts.operators) - tables.CUT_ROWS
    remark = f" The table has the first {tables.CUT_ROWS}." if left_out > 0 else ""
    largest = sorted(cuts.stacks, key=lambda stack: (-stack.bytes, stack.number))[:STACKS_DRAWN]
    charts = [page.place(draw_stack(stack, on)) for stack in largest]
    return [
        section(
            "Cut operators",
            hint(cuts.summary() + remark),
            *([hint(STACK_HINT)] if charts else []),
            *charts,
            tables.cut_operators(cuts),
        )
    ]


def hide_together(on: Canvas) -> None:
    """Hide a network in all charts when the legend hides it in the schedule."""
    for first, *others in on.drawn.values():
        for other in others:
            first.js_link("visible", other, "visible")
