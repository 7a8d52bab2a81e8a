"""The view of a plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from loadmaster.core.units import format_bytes, format_count, format_joules, format_seconds
from loadmaster.planning.plan_records import PlannedJob, PlanRecord, Rate
from loadmaster.report import figures, plan_charts
from loadmaster.report.core_time import core_time, peak_seconds
from loadmaster.report.cuts import PlanCuts, cuts_of
from loadmaster.report.text import gap_text, if_known, percent, plural, shortened
from loadmaster.report.timeline import TimeUnit, largest, time_unit
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
    PagePart,
    Section,
    Share,
    Table,
    first_rows,
    table,
)
from loadmaster.targets.hardware import Memory
from loadmaster.workloads.graph import uncounted
from loadmaster.workloads.job import MiniBatch, NetworkTiming

if TYPE_CHECKING:
    from loadmaster.planning.what_if import Change

SCHEDULE_HINT = (
    "The paler a job, the longer it waits for memory. Pieces of one operator have one shade of"
    " their network's colour. Drag to pan, hold Ctrl and scroll to zoom in time: all charts move"
    " together, with arrows, + and - too, and 0 resets. Click a network in the legend to hide it"
    " everywhere; the circular arrow in a chart's corner resets the view. trace.json.gz has every"
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
PEAK_ROWS, TRAFFIC_ROWS, CUT_ROWS = 30, 60, 200


def plan_page(
    plan: PlanRecord, changes: Sequence[Change] = (), spent: tuple[float, float] | None = None
) -> Page:
    """Make the page of a plan; its part for the terminal fits on one screen.

    Parameters
    ----------
    plan
        The finished plan.
    changes
        Result of :func:`loadmaster.what_if`.
    spent
        Seconds of planning, wall-clock and processor time; None for a plan read from a file.
    """
    objective, axis = plan.objective, plan_charts.time_axis(plan)
    late = f", {plural(plan.missed, 'deadline')} missed" if plan.missed else ""
    warning = uncounted(kind for network in plan.networks for kind in network.unknown)

    def sections() -> list[Section]:
        """Return the report's sections."""
        memories = plan.target.memories
        cuts = cuts_of(plan)
        # By the first of fused operators.
        by_operator = _job_times(plan, lambda j: f"{j.operators[0]} ({j.kind}) of {j.network}")
        longest = first_rows(by_operator, LONGEST_ROWS, "other operator")
        took = ""
        if spent is not None:
            seconds, cpu_seconds = map(format_seconds, spent)
            took = f" Planned in {seconds} ({cpu_seconds} of processor time)."
        remarks = [f"{n.name}: {note}" for n in plan.networks for note in n.notes]
        said = [
            Line(figures.gain(plan), "strong"),
            Line(f"Status {figures.verdict(plan)}."),
            Line(f"{plural(len(plan.jobs), 'job')}, seed {plan.seed}, {plan.producer}.{took}"),
            Line(cuts.summary()),
        ]
        shared = ((m.name, figures.link_text(m), m.capacity) for m in memories)
        private = ((c.name, "private", c.buffer) for c in plan.target.cores if c.buffer)
        maps = [plan_charts.memory_map(plan, memory, axis) for memory in memories]
        thickest = sorted(cuts.stacks, key=lambda stack: -sum(o.bytes for o in stack[:-1]))
        stacks = [plan_charts.stack_chart(stack, axis) for stack in thickest[:STACKS_DRAWN]]
        by_kind = Table(_job_times(plan, attrgetter("kind")), limit=8, width=16)
        limits = Table(
            [
                {"What limits it: time of all cores": name, ">Share": Share(share)}
                for name, share in core_time(plan).rows()
            ],
            limit=4,
        )
        unit = time_unit(axis.scale)
        return [
            Section("", [Line(warning, "strong"), Line(figures.machine_text(plan))], BOTH),
            Section("", [Figures(figures.figures(plan), "Estimate")], ALL),
            Section("", said, BOTH),
            Section("", [Line(figures.figures_rest_on(plan.costs))], ALL),
            Section("What limits it", [limits, _what_if(plan, changes)], BOTH, LIMITS_HINT),
            Section("", [longest]),
            Section("Networks", [_networks(plan)], BOTH),
            Section("", [Notes(remarks)]),
            Section("Mini-batches", [mini_batches(plan.mini_batches, plan.timings)], BOTH),
            Section("Memories", [_use_table(plan, shared)], ALL),
            Section("Cores", [Beside([_cores(plan), by_kind])], BOTH),
            Section(
                "Schedule and bandwidth",
                [Legend(), plan_charts.schedule(plan, axis)],
                DRAWN,
                SCHEDULE_HINT,
            ),
            Section("", [plan_charts.link(plan, memory) for memory in memories]),
            Section("Memory over time", maps, DRAWN, MAP_HINT),
            Section(
                "Cut operators", [_cut_operators(cuts), *stacks], hint=STACK_HINT * bool(stacks)
            ),
            Section("Search", plan_charts.search_charts(plan)),
            Section("Private buffers", [_use_table(plan, private)], hint=BUFFERS_HINT),
            Section("Traffic", [_traffic(plan)]),
            Section("Energy", [_energy(plan)]),
            *(Section(f"At the peak of {m.name}", _peak(plan, m, unit)) for m in memories),
            Section("Notes", [Notes(plan.notes)], BOTH),
        ]

    fields = (
        *("name", "network", "mini_batch", "kind", "core"),
        *("start", "end", "compute", "energy", "macs", "elements"),
    )
    return Page(
        f"Plan of {figures.title(plan)}",
        plan.target.description,
        sections,
        axis,
        f"{warning and f'{warning}. '}{plan.status}, {figures.objective_name(plan)}"
        f" {figures.objective_text(plan, objective.value)},"
        f" {gap_text(plan.status, objective.value, objective.lower_bound)}{late}",
        lambda: ({field: getattr(job, field) for field in fields} for job in plan.jobs),
    )


def _what_if(plan: PlanRecord, changes: Sequence[Change]) -> Table:
    """Make a table of the effects of changes of the machine, relative to a quick plan for the
    unchanged machine."""
    rows = []
    for change in changes:
        found, beside, base = "does not fit", "", changes[0].value
        if change.value is not None:
            found = figures.objective_text(plan, change.value)
            beside = f"{change.value / base - 1:+z.1%}" if base else ""
        if change.missed:
            found += f", {plural(change.missed, 'deadline')} missed"
        name = figures.objective_name(plan).capitalize()
        rows.append({"What if: quick plans": change.name, f">{name}": found, ">Change": beside})
    return Table(rows)


def _networks(plan: PlanRecord) -> Table:
    """Make a table of the networks."""
    return Table(
        [
            {
                "Network": n.name,
                "+Source": n.source,
                ">Operators": f"{len(n.operators):,}",
                ">MACs": format_count(n.macs),
                "Precision": n.precision,
                ">Batch": str(n.batch),
                ">Mini-batches": str(n.mini_batches),
            }
            for n in plan.networks
        ],
        width=24,
    )


def _use_table(plan: PlanRecord, held: Iterable[tuple[str, str, int]]) -> Table:
    """Make a table of the peaks of memories, given by name, link and capacity, against their bounds
    and capacities."""
    rows = []
    for name, link, capacity in held:
        use = figures.memory_use(plan, name, capacity)
        rows.append(
            {
                "Memory": name,
                "+Link": link,
                ">Peak": format_bytes(use.peak),
                ">Lower bound": format_bytes(use.lower_bound),
                ">Capacity": format_bytes(use.capacity),
                ">Used": Share(use.peak / use.capacity if use.capacity else 0.0),
            }
        )
    return Table(rows, width=24)


def _cores(plan: PlanRecord) -> Table:
    """Make a table of each core's utilisation over the makespan."""
    whole = plan.metrics.makespan.value or 1.0
    rows = []
    for core in plan.target.cores:
        mine = [job for job in plan.jobs if job.core == core.name]
        computing = plan.metrics.utilisation.get(core.name, Rate(0.0, 1.0))
        rows.append(
            {
                "Core": core.name,
                "+Dataflow": core.style,
                "+Array": f"{core.rows} x {core.columns}",
                ">Jobs": f"{len(mine):,}",
                ">Busy": Share(sum(job.end - job.start for job in mine) / whole),
                ">Computing": Share(computing.value),
                "+>Computing at most": percent(computing.upper_bound),
            }
        )
    return Table(rows, limit=16, width=16)


def _job_times(plan: PlanRecord, group: Callable[[PlannedJob], str]) -> list[dict[str, str]]:
    """Return a row for each group of jobs, longest first: seconds, share of the cores' busy time,
    and share of the arrays' peak rate that the jobs reach."""
    machine = {core.name: core for core in plan.target.cores}
    count: Counter[str] = Counter()
    spent: dict[str, float] = defaultdict(float)
    peak: dict[str, float] = defaultdict(float)
    for job in plan.jobs:
        name = group(job)
        count[name] += 1
        spent[name] += job.end - job.start
        peak[name] += peak_seconds(job, machine.get(job.core))
    total = sum(spent.values()) or 1.0
    return [
        {
            "Operator": name,
            ">Jobs": f"{count[name]:,}",
            "+>Time": format_seconds(seconds),
            ">Of time": Share(seconds / total),
            ">Of peak": Share(peak[name] / seconds if seconds else 0.0),
        }
        for name, seconds in sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    ]


def _peak(plan: PlanRecord, memory: Memory, unit: TimeUnit) -> list[PagePart]:
    """Return a table of the buffers alive at a memory's peak, largest first."""
    mine = figures.allocations_of(plan, memory.name)
    instant, _, held = largest(figures.bytes_alive(mine))
    live = [a for a in mine if a.start <= instant < a.end]
    live.sort(key=lambda a: (-a.bytes, a.tensor, a.offset))
    if not live:
        return [Line(f"Nothing is ever kept in {memory.name}.")]
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    rows = [
        {
            "Tensor": a.tensor,
            "Network": tensors[a.tensor].network,
            "Kind": tensors[a.tensor].kind,
            ">Size": format_bytes(a.bytes),
            ">Address": f"{a.offset:,}",
            ">Lifetime": unit.span(a.start, a.end),
            "Producer": tensors[a.tensor].producer or "there from the start",
        }
        for a in live
    ]
    said = (
        f"At {unit.text(instant)}, {plural(len(live), 'buffer')} hold {format_bytes(held)} of"
        f" {memory.name}."
    )
    return [Line(said), first_rows(rows, PEAK_ROWS, "smaller buffer")]


def _traffic(plan: PlanRecord) -> Table:
    """Make a table of bytes transferred between each pair of memories and cores, most bytes
    first."""
    moved: Counter[tuple[str, str]] = Counter()
    for move in plan.transfers:
        moved[move.source, move.destination] += move.bytes
    total = moved.total()
    rows = [
        {"From": source, "To": to, ">Bytes": format_bytes(size), "Share": Share(size / total)}
        for (source, to), size in moved.most_common()
        if size
    ]
    return first_rows(rows, TRAFFIC_ROWS, "way with fewer bytes")


def _energy(plan: PlanRecord) -> Table:
    """Make a table of energy: for each memory the energy of its link's bytes, for each core that of
    its jobs and of its private buffer's bytes."""
    metrics = plan.metrics
    inside = dict.fromkeys(metrics.energy_by, 0.0)
    for job in plan.jobs:
        inside[job.core] += job.energy
    whole = metrics.energy.value
    rows = [
        (
            place,
            format_joules(inside[place]),
            format_joules(taken - inside[place]),
            format_joules(taken),
            Share(taken / (whole or 1.0)),
        )
        for place, taken in metrics.energy_by.items()
    ]
    if plan.target.static_power:
        static = whole - sum(metrics.energy_by.values())
        rows.append(("static power", "", "", format_joules(static), Share(static / (whole or 1.0))))
    heads = "Memory or core", ">Arithmetic and array", ">Bytes in and out", ">Energy", "Share"
    return table(heads, rows)


def _cut_operators(cuts: PlanCuts) -> Table:
    """Make a table of operators in pieces, with the cut and its purpose."""
    rows = [
        {
            "Network": operator.network,
            "Operators": shortened(operator.jobs[0].operators),
            ">Pieces": f"{len(operator.jobs):,}",
            "Along": operator.how(),
            ">Cores": f"{operator.cores:,}",
            ">Stack": "" if operator.stack is None else str(operator.stack + 1),
            "Why": cuts.why(operator),
        }
        for operator in cuts.operators
    ]
    return first_rows(rows, CUT_ROWS, "other operator")


def mini_batches(batches: Iterable[MiniBatch], timings: Iterable[NetworkTiming]) -> Table:
    """Make a table of mini-batches with a release time or a deadline, those that miss it first."""
    deadlines = {timing.network: timing.deadline for timing in timings}
    rows = []
    for batch in sorted(batches, key=lambda batch: not batch.missed):
        if batch.network in deadlines:
            due = deadlines[batch.network]
            rows.append(
                {
                    "Network": batch.network,
                    ">Mini-batch": str(batch.number),
                    ">Released": format_seconds(batch.release),
                    ">Latency": format_seconds(batch.latency),
                    ">Deadline": if_known(due, format_seconds, ""),
                    "": "" if due is None else "missed" if batch.missed else "met",
                }
            )
    return Table(rows, limit=8, width=24)
