"""What is shown of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from loadmaster.core.units import format_seconds
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report import figures, plan_charts, plan_tables
from loadmaster.report.cuts import cuts_of
from loadmaster.report.text import plural, reached
from loadmaster.report.timeline import time_unit
from loadmaster.report.view import (
    ALL,
    BOTH,
    DRAWN,
    Beside,
    Figures,
    Legend,
    Line,
    Notes,
    Page,
    Section,
    Table,
    first_rows,
)
from loadmaster.workloads.graph import uncounted

if TYPE_CHECKING:
    from loadmaster.planning.what_if import Change

SCHEDULE_HINT = (
    "The paler a job, the longer it waits for memory. Pieces of one operator have one shade of"
    " their network's colour. Drag to pan, hold Ctrl and scroll to zoom in time: all charts move"
    " together, with arrows, + and - too, and 0 resets. Click a network in the legend to hide it"
    " everywhere; the circular arrow in a chart's corner resets the view. trace.pftrace has every"
    " job and copy."
)
LIMITS_HINT = (
    "Where most of the time goes is what to change: a link that cores wait for wants more bandwidth"
    " or less traffic; arrays filled in part want another dataflow or shape; cores without a job"
    " want more mini-batches or fewer cores. loadmaster plan --what-if plans such changes, and"
    " loadmaster inspect MODEL --target MACHINE draws operators under the machine's roofline. Time"
    " is a share of the cores' busy time, peak of the arrays' peak rate."
)
STACK_HINT = (
    "A stack runs band by band. Each rectangle is a band of an operator's result, from when it is"
    " written to when it is last read: what lies one above the other in a lane is in memory at"
    " once. Of the first mini-batch; the stacks with the most bytes between operators."
)
MAP_HINT = (
    "What jobs produce is drawn in full colour, weights and inputs are pale. Colours are those of"
    " the networks above."
)
BUFFERS_HINT = (
    "A core's buffer holds the tiles of one job at a time. No tensor stays in it between jobs."
)
LONGEST_ROWS, STACKS_DRAWN = 20, 3


def plan_page(
    plan: PlanRecord, changes: Sequence[Change] = (), spent: tuple[float, float] | None = None
) -> Page:
    """Make the page of a plan, whose part for the terminal fits one screen.

    Parameters
    ----------
    plan
        The finished plan.
    changes
        What :func:`loadmaster.what_if` found.
    spent
        Seconds that planning took, by the clock and in processor time, if it was just planned.
    """
    objective = plan.objective
    value = figures.objective_text(plan, objective.value)
    far = reached(plan.status, objective.value, objective.lower_bound)
    late = f", {plural(plan.missed, 'deadline')} missed" if plan.missed else ""
    warning = f"{line.text}. " if (line := _warning(plan)) else ""
    fields = (
        *("name", "network", "mini_batch", "kind", "core"),
        *("start", "end", "compute", "energy", "macs", "elements"),
    )
    return Page(
        f"Plan of {figures.title(plan)}",
        plan.target.description,
        partial(_sections, plan, changes, spent),
        plan_charts.time_axis(plan),
        f"{warning}{plan.status}, {figures.objective_name(plan)} {value}, {far}{late}",
        lambda: ({field: getattr(job, field) for field in fields} for job in plan.jobs),
    )


def _warning(plan: PlanRecord) -> Line:
    return Line(uncounted(kind for n in plan.networks for kind in n.unknown), "strong")


def _sections(
    plan: PlanRecord, changes: Sequence[Change], spent: tuple[float, float] | None
) -> list[Section]:
    axis = plan_charts.time_axis(plan)
    memories = plan.target.memories
    cuts = cuts_of(plan)
    by_operator = plan_tables.job_times(plan, plan_tables.by_operator)
    longest = first_rows(by_operator, LONGEST_ROWS, "operator")
    count = plural(len(plan.jobs), "job")
    took = ""
    if spent is not None:
        seconds, cpu_seconds = map(format_seconds, spent)
        took = f" Planned in {seconds} ({cpu_seconds} of processor time)."
    remarks = [f"{n.name}: {note}" for n in plan.networks for note in n.notes]
    said = [
        Line(figures.gain(plan), "strong"),
        Line(f"Status {figures.verdict(plan)}."),
        Line(f"{count}, seed {plan.seed}, {plan.producer}.{took}"),
        Line(cuts.summary()),
    ]
    links = [plan_charts.link(plan, memory) for memory in memories]
    maps = [plan_charts.memory_map(plan, memory, axis) for memory in memories]
    largest = sorted(cuts.stacks, key=lambda stack: (-stack.bytes, stack.number))[:STACKS_DRAWN]
    stacks = [Line(STACK_HINT, "hint"), *(plan_charts.stack_chart(s, axis) for s in largest)]
    limits = [Line(LIMITS_HINT, "hint"), plan_tables.limits(plan), _what_if(plan, changes)]
    by_kind = Table(plan_tables.job_times(plan, attrgetter("kind")), limit=8, width=16)
    schedule = [Line(SCHEDULE_HINT, "hint"), Legend(), plan_charts.schedule(plan, axis)]
    batches = plan_tables.mini_batches(plan.mini_batches, plan.timings)
    unit = time_unit(axis.scale)
    head = [_warning(plan), Line(figures.machine_text(plan))]
    return [
        Section("", head, BOTH),
        Section("", [Figures(figures.figures(plan), "Estimate")], ALL),
        Section("", said, BOTH),
        Section("", [Line(figures.figures_rest_on(plan.costs))], ALL),
        Section("What limits it", limits, BOTH),
        Section("", [longest]),
        Section("Networks", [plan_tables.networks(plan)], BOTH),
        Section("", [Notes(remarks)]),
        Section("Mini-batches", [batches], BOTH),
        Section("Memories", [plan_tables.memories(plan)], ALL),
        Section("Cores", [Beside([plan_tables.cores(plan), by_kind])], BOTH),
        Section("Schedule and bandwidth", schedule, DRAWN),
        Section("", links),
        Section("Memory over time", [Line(MAP_HINT, "hint"), *maps], DRAWN),
        Section("Cut operators", [plan_tables.cut_operators(cuts), *stacks]),
        Section("Search", plan_charts.search_charts(plan)),
        Section("Private buffers", [Line(BUFFERS_HINT, "hint"), plan_tables.buffers(plan)]),
        Section("Traffic", [plan_tables.traffic(plan)]),
        Section("Energy", [plan_tables.energy(plan)]),
        *(Section(f"At the peak of {m.name}", plan_tables.peak(plan, m, unit)) for m in memories),
        Section("Notes", [Notes(plan.notes)], BOTH),
    ]


def _what_if(plan: PlanRecord, changes: Sequence[Change]) -> Table:
    """What changes of the machine would bring, beside a plan of the same effort without."""
    rows = []
    for change in changes:
        found, beside, base = "does not fit", "", changes[0].value
        if change.value is not None:
            found = figures.objective_text(plan, change.value)
            beside = f"{change.value / base - 1:+.1%}" if base else ""
        name = figures.objective_name(plan).capitalize()
        rows.append({"What if: quick plans": change.name, f">{name}": found, ">Change": beside})
    return Table(rows)
