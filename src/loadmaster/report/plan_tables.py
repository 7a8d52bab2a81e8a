"""The tables of a plan: networks, memories, cores, time, energy and traffic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from loadmaster.core.units import format_bytes, format_count, format_joules, format_seconds
from loadmaster.planning.plan_records import PlannedJob, PlanRecord
from loadmaster.report.core_time import core_time, peak_seconds
from loadmaster.report.cuts import Cuts
from loadmaster.report.figures import (
    allocations_of,
    bytes_alive,
    link_text,
    memory_use,
    utilisation,
)
from loadmaster.report.text import NOTHING, comma, excess, percent, plural, shortened
from loadmaster.report.timeline import TimeUnit
from loadmaster.report.view import Cell, Line, Marked, Part, Shaded, Share, Table, first_rows
from loadmaster.targets.hardware import Memory
from loadmaster.workloads.job import MiniBatch, NetworkTiming

PEAK_ROWS = 30
CUT_ROWS = 200
LONGEST_ROWS = 20


def networks(plan: PlanRecord) -> Table:
    """Make a table of the networks, with their colours in the charts."""
    columns = ("Network", "Source", ">Operators", ">MACs", "Precision", ">Batch", ">Mini-batches")
    rows = [
        (
            Marked(n.name, number),
            n.source,
            f"{len(n.operators):,}",
            format_count(n.macs),
            n.precision,
            str(n.batch),
            str(n.mini_batches),
            comma(sorted(set(n.unknown))),
        )
        for number, n in enumerate(plan.networks)
    ]
    return Table((*columns, "Unknown operators"), rows)


def memories(plan: PlanRecord) -> Table:
    """Make a table of traffic and peak of each shared memory against their bounds."""
    rows: list[Sequence[Cell]] = []
    for memory in plan.target.memories:
        cost = plan.metrics.traffic.get(memory.name)
        use = memory_use(plan, memory.name, memory.capacity)
        moved = [NOTHING] * 3
        if cost is not None:
            ends = cost.value, cost.lower_bound
            moved = [*map(format_bytes, ends), excess(*ends)]
        sizes = map(format_bytes, (use.peak, use.lower_bound, use.capacity))
        used = Share(use.peak / use.capacity if use.capacity else 0.0)
        rows.append((memory.name, link_text(memory), *moved, *sizes, used))
    traffic = ("Memory", "Link", ">Traffic", ">Compulsory", ">Distance")
    return Table((*traffic, ">Peak", ">Lower bound", ">Capacity", ">Used"), rows)


def cores(plan: PlanRecord) -> Table:
    """Make a table of each core's activity over the makespan."""
    whole = plan.metrics.makespan.value or 1.0
    jobs: dict[str, list[PlannedJob]] = defaultdict(list)
    for job in plan.jobs:
        jobs[job.core].append(job)
    rows = []
    for core in plan.target.cores:
        mine, computing = jobs[core.name], utilisation(plan, core.name)
        rows.append(
            (
                core.name,
                core.style,
                f"{core.rows} x {core.columns}",
                f"{len(mine):,}",
                Share(sum(job.end - job.start for job in mine) / whole),
                Share(computing.value),
                percent(computing.upper_bound),
            )
        )
    figures = (">Jobs", ">Busy", ">Computing", ">Computing at most")
    return Table(("Core", "Dataflow", "Array", *figures), rows)


def limits(plan: PlanRecord) -> Table:
    """Make a table of what cores do and wait for."""
    rows = [(name, Share(share)) for name, share in core_time(plan).rows()]
    return Table(("What limits it: time of all cores", ">Share"), rows)


def by_operator(job: PlannedJob) -> str:
    """Group jobs by operator, named by the first of those that are fused."""
    return f"{job.operators[0]} ({job.kind}) of {job.network}"


def job_times(plan: PlanRecord, group: Callable[[PlannedJob], str]) -> Table:
    """Make a table of groups of jobs, the longest first: their seconds, as a share of the cores'
    busy time, and the share of the arrays' peak that they reach meanwhile."""
    machine = {core.name: core for core in plan.target.cores}
    found: dict[str, list[PlannedJob]] = defaultdict(list)
    for job in plan.jobs:
        found[group(job)].append(job)
    spent = {name: sum(job.end - job.start for job in jobs) for name, jobs in found.items()}
    total = sum(spent.values()) or 1.0
    rows = []
    for name in sorted(spent, key=lambda name: (-spent[name], name)):
        peak = sum(peak_seconds(job, machine.get(job.core)) for job in found[name])
        share = Share(peak / spent[name] if spent[name] else 0.0)
        time = format_seconds(spent[name]), Share(spent[name] / total)
        rows.append((name, f"{len(found[name]):,}", *time, share))
    columns = ("Operator", ">Jobs", ">Time", ">Of time", ">Of peak")
    return Table(columns, rows)


def buffers(plan: PlanRecord) -> Table:
    """Make a table of the peak use of each private buffer, and the first job at the peak."""
    rows = []
    for core in plan.target.cores:
        if core.buffer:
            alive = bytes_alive(allocations_of(plan, core.name))
            peak, instant = memory_use(plan, core.name, core.buffer).peak, alive.peak_instant()
            during = (
                job.name
                for job in plan.jobs
                if alive.values and job.core == core.name and job.start <= instant < job.end
            )
            mean = alive.mean(plan.metrics.makespan.value)
            sizes = format_bytes(core.buffer), format_bytes(peak)
            shares = Share(peak / core.buffer), Share(mean / core.buffer)
            rows.append((core.name, *sizes, *shares, next(during, NOTHING)))
    columns = ("Core", ">Buffer", ">Peak", "Peak of buffer", "Mean over the makespan")
    return Table((*columns, "Fullest during"), rows)


def peak(plan: PlanRecord, memory: Memory, unit: TimeUnit) -> list[Part]:
    """List the buffers that are live at a memory's peak, largest first."""
    mine = allocations_of(plan, memory.name)
    instant = bytes_alive(mine).peak_instant()
    live = [a for a in mine if a.start <= instant < a.end]
    live.sort(key=lambda a: (-a.bytes, a.tensor, a.offset))
    if not live:
        return [Line(f"Nothing is ever kept in {memory.name}.")]
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    rows = [
        (
            a.tensor,
            tensors[a.tensor].network,
            tensors[a.tensor].kind,
            format_bytes(a.bytes),
            f"{a.offset:,}",
            unit.span(a.start, a.end),
            tensors[a.tensor].producer or "there from the start",
        )
        for a in live[:PEAK_ROWS]
    ]
    rest = live[PEAK_ROWS:]
    more = (
        f"{plural(len(rest), 'smaller buffer')} with {format_bytes(sum(a.bytes for a in rest))} in"
        " all are not listed."
    )
    held = (
        f"At {unit.text(instant)}, {plural(len(live), 'buffer')} hold"
        f" {format_bytes(sum(a.bytes for a in live))} of {memory.name}."
    )
    columns = ("Tensor", "Network", "Kind", ">Size", ">Address", ">Lifetime", "Producer")
    return [Line(held), Table(columns, rows, more if rest else "")]


def traffic(plan: PlanRecord) -> Table:
    """Make a table of bytes moved from each place (rows) to each other (columns), darker with more
    bytes."""
    moved: Counter[tuple[str, str]] = Counter()
    for move in plan.transfers:
        moved[move.source, move.destination] += move.bytes
    known = [m.name for m in plan.target.memories] + [c.name for c in plan.target.cores]
    places = list(dict.fromkeys([*known, *chain.from_iterable(moved)]))
    sources = [place for place in places if any(moved[place, other] for other in places)]
    to = [place for place in places if any(moved[source, place] for source in sources)]
    most = max(moved.values(), default=1)
    rows: list[Sequence[Cell]] = []
    for source in sources:
        sizes = [moved[source, place] for place in to]
        cells = [Shaded(format_bytes(size) if size else NOTHING, size / most) for size in sizes]
        rows.append([source, *cells, format_bytes(sum(sizes))])
    totals = [sum(moved[source, place] for source in sources) for place in to]
    rows.append(["Total", *map(format_bytes, (*totals, sum(totals)))])
    return Table(("From \\ to", *(f">{place}" for place in to), ">Total"), rows)


def energy(plan: PlanRecord) -> Table:
    """Make a table of energy: of each memory for bytes over its link, of each core for its jobs and
    bytes through its buffer."""
    metrics = plan.metrics
    inside = dict.fromkeys(metrics.energy_by, 0.0)
    for job in plan.jobs:
        inside[job.core] += job.energy
    total = metrics.energy.value or 1.0
    rows: list[tuple[Cell, ...]] = [
        (
            place,
            format_joules(inside[place]),
            format_joules(taken - inside[place]),
            format_joules(taken),
            Share(taken / total),
        )
        for place, taken in metrics.energy_by.items()
    ]
    static = metrics.energy.value - sum(metrics.energy_by.values())
    if plan.target.static_power:
        rows.append(("static power", "", "", format_joules(static), Share(static / total)))
    columns = ("Memory or core", ">Arithmetic and array", ">Bytes in and out", ">Energy", "Share")
    return Table(columns, rows)


def cut_operators(cuts: Cuts) -> Table:
    """Make a table of operators in pieces: how each is cut and why."""
    rows = [
        (
            operator.network,
            shortened(operator.jobs[0].operators),
            f"{len(operator.jobs):,}",
            operator.how(),
            f"{operator.cores:,}",
            "" if operator.stack is None else str(operator.stack + 1),
            cuts.why(operator),
        )
        for operator in cuts.operators
    ]
    columns = ("Network", "Operators", ">Pieces", "Along", ">Cores", ">Stack", "Why")
    return first_rows(columns, rows, CUT_ROWS, "operator")


def mini_batches(batches: Iterable[MiniBatch], timings: Iterable[NetworkTiming]) -> Table:
    """Make a table of the mini-batches with a release time or a deadline, and whether it is met."""
    deadlines = {timing.network: timing.deadline for timing in timings}
    rows = []
    for batch in batches:
        if batch.network in deadlines:
            deadline = deadlines[batch.network]
            times = format_seconds(batch.release), format_seconds(batch.latency)
            due = "" if deadline is None else format_seconds(deadline)
            met = "missed" if batch.missed else "met" if due else ""
            rows.append((batch.network, str(batch.number), *times, due, met))
    columns = ("Network", ">Mini-batch", ">Released", ">Latency", ">Deadline", "")
    return Table(columns, rows)
