"""A plan's page, its summary in the terminal, and its view in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report import figures, plan_charts, plan_tables
from loadmaster.report.cuts import cuts_of
from loadmaster.report.text import plural, reached
from loadmaster.report.timeline import time_unit
from loadmaster.report.view import (
    Axis,
    Beside,
    Curve,
    Figure,
    Figures,
    Legend,
    Line,
    MemoryMap,
    Notes,
    Page,
    Part,
    Section,
    Table,
    Timeline,
    View,
    bounded,
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
KINDS_SHOWN, CORES_SHOWN, BATCHES_SHOWN, LIMITS_SHOWN, STACKS_DRAWN = 8, 16, 8, 4, 3
HALF_WIDTH = 16
"""The most characters of a name in one of two tables side by side in 80 columns."""
_BUFFERS = (
    "A core's buffer holds the tiles of one job at a time. No tensor stays in it between jobs."
)


def plan_page(plan: PlanRecord) -> Page:
    """Make the page of a plan."""
    axis, memories = plan_charts.time_axis(plan), plan.target.memories
    detail = f"seed {plan.seed}, {plural(len(plan.jobs), 'job')}, {plan.producer}"
    shown = [*figures.figures(plan), Figure("Status", plan.status, distance=detail)]
    verdict = figures.verdict(plan)
    about = f"{verdict[:1].upper()}{verdict[1:]}. {figures.figures_rest_on(plan.costs)}"
    gain = Line(figures.gain(plan), "strong")
    head = [_warning(plan), Figures(shown), gain, Line(about), Notes(plan.notes)]
    times = plan_tables.job_times(plan, plan_tables.by_operator)
    longest = first_rows(times.columns, times.rows, plan_tables.LONGEST_ROWS, "operator")
    limits = [Line(LIMITS_HINT, "hint"), plan_tables.limits(plan), longest]
    remarks = Notes([f"{n.name}: {note}" for n in plan.networks for note in n.notes])
    batches, unit = plan_tables.mini_batches(plan.mini_batches, plan.timings), time_unit(axis.scale)
    schedule = [
        Line(SCHEDULE_HINT, "hint"),
        Legend(),
        plan_charts.schedule(plan, axis),
        *(plan_charts.link(plan, memory) for memory in memories),
    ]
    maps = [plan_charts.memory_map(plan, memory, axis) for memory in memories]
    buffers = plan_tables.buffers(plan)
    sections = [
        Section("", head),
        Section("What limits it", limits),
        Section("Networks", [plan_tables.networks(plan), remarks]),
        Section("Mini-batches", [batches] if batches.rows else []),
        Section("Memories", [plan_tables.memories(plan)]),
        Section("Cores", [plan_tables.cores(plan)]),
        Section("Schedule and bandwidth", schedule),
        Section("Cut operators", _cuts(plan, axis)),
        Section("Memory over time", [Line(MAP_HINT, "hint"), *maps]),
        Section("Search", plan_charts.search_charts(plan)),
        Section("Private buffers", [Line(_BUFFERS, "hint"), buffers] if buffers.rows else []),
        Section("Traffic", [plan_tables.traffic(plan)]),
        Section("Energy", [plan_tables.energy(plan)]),
        *(Section(f"At the peak of {m.name}", plan_tables.peak(plan, m, unit)) for m in memories),
    ]
    return Page(figures.title(plan), plan.target.description, sections, axis)


def _warning(plan: PlanRecord) -> Line:
    return Line(uncounted(kind for n in plan.networks for kind in n.unknown), "strong")


def _cuts(plan: PlanRecord, axis: Axis) -> list[Part]:
    """List the operators in pieces, with a chart for each of the stacks that hold most."""
    cuts = cuts_of(plan)
    if not cuts.operators:
        return []
    largest = sorted(cuts.stacks, key=lambda stack: (-stack.bytes, stack.number))[:STACKS_DRAWN]
    charts = [plan_charts.stack_chart(stack, axis) for stack in largest]
    hint = Line(STACK_HINT if charts else "", "hint")
    return [Line(cuts.summary(), "hint"), hint, *charts, plan_tables.cut_operators(cuts)]


def plan_summary(
    plan: PlanRecord,
    *,
    seconds: float | None = None,
    cpu_seconds: float | None = None,
    changes: Sequence[Change] = (),
) -> Iterable[Part]:
    """Iterate over the parts of the summary, which fits one screen.

    Parameters
    ----------
    plan : PlanRecord
        The finished plan.
    seconds, cpu_seconds : float, optional
        Seconds that planning took, by the clock and in processor time, if it was just planned.
    changes : sequence of Change
        What :func:`loadmaster.what_if` found.
    """
    networks, limits = plan_tables.networks(plan), plan_tables.limits(plan)
    shown = ("Network", ">Operators", ">MACs", "Precision", ">Batch", ">Mini-batches")
    yield _warning(plan)
    yield Line(figures.machine_text(plan))
    yield networks.brief(*shown)
    yield Figures(figures.figures(plan), "Estimate")
    yield Table(limits.columns, limits.rows[:LIMITS_SHOWN])
    if changes:
        yield what_if_table(plan, changes)
    batches = plan_tables.mini_batches(plan.mini_batches, plan.timings)
    if batches.rows:
        late_first = sorted(batches.rows, key=lambda row: row[-1] != "missed")
        late = Table(batches.columns, late_first)
        yield late.brief(limit=BATCHES_SHOWN)
    yield plan_tables.memories(plan).brief("Memory", ">Peak", ">Lower bound", ">Capacity", ">Used")
    cores, kinds = plan_tables.cores(plan), plan_tables.job_times(plan, attrgetter("kind"))
    yield Beside(
        [
            cores.brief(
                "Core", ">Jobs", ">Busy", ">Computing", limit=CORES_SHOWN, width=HALF_WIDTH
            ),
            kinds.brief(
                "Operator", ">Jobs", ">Of time", ">Of peak", limit=KINDS_SHOWN, width=HALF_WIDTH
            ),
        ]
    )
    yield Notes([f"Note: {note}" for note in plan.notes])
    yield Line(cuts_of(plan).summary())
    yield Line(figures.gain(plan))
    yield Line(f"Status {figures.verdict(plan)}.")
    took = f"{plural(len(plan.jobs), 'job')}, seed {plan.seed}."
    if seconds is not None and cpu_seconds is not None:
        spent = f"{format_seconds(seconds)} ({format_seconds(cpu_seconds)} of processor time)"
        took = f"Planned {plural(len(plan.jobs), 'job')} in {spent}, seed {plan.seed}."
    yield Line(took)
    yield Line(figures.figures_rest_on(plan.costs))


def what_if_table(plan: PlanRecord, changes: Sequence[Change]) -> Table:
    """What changes of the machine would bring, beside a plan of the same effort without."""
    base = changes[0].value
    rows = []
    for change in changes:
        if change.value is None:
            rows.append((change.name, "does not fit", ""))
            continue
        beside = f"{change.value / base - 1:+.1%}" if base else ""
        rows.append((change.name, figures.objective_text(plan, change.value), beside))
    name = figures.objective_name(plan).capitalize()
    return Table(("What if: quick plans", f">{name}", ">Change"), rows)


def view(plan: PlanRecord) -> View:
    """Make the view of a plan in notebooks."""
    shared = {memory.name for memory in plan.target.memories}
    peaks = [
        bounded(f"Peak {name}", use.peak, use.lower_bound, format_bytes)
        for name, use in plan.metrics.memory.items()
        if name in shared
    ]
    objective = plan.objective
    value = figures.objective_text(plan, objective.value)
    far = reached(plan.status, objective.value, objective.lower_bound)
    late = f", {plural(plan.missed, 'deadline')} missed" if plan.missed else ""
    warning = f"{line}. " if (line := _warning(plan).text) else ""
    headline = f"{warning}{plan.status}, {figures.objective_name(plan)} {value}, {far}{late}"
    fields = [
        "name",
        "network",
        "mini_batch",
        "kind",
        "core",
        "start",
        "end",
        "compute",
        "energy",
        "macs",
        "elements",
    ]

    def pictures() -> Iterable[Timeline | Curve | MemoryMap]:
        axis, fast = plan_charts.time_axis(plan), plan.target.fast
        yield plan_charts.schedule(plan, axis)
        if fast is not None:
            alive = figures.bytes_alive(figures.allocations_of(plan, fast.name))
            yield Curve(fast.name, "", alive.triples(axis.end), fast.capacity)

    def rows() -> Iterable[Mapping[str, Any]]:
        return ({field: getattr(job, field) for field in fields} for job in plan.jobs)

    notes = (figures.figures_rest_on(plan.costs),)
    title = f"Plan of {figures.title(plan)}"
    return View(title, headline, [*figures.figures(plan), *peaks], pictures, rows, notes)
