"""The tables of a plan: networks, memories, cores, time, energy and traffic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from loadmaster.core.units import format_bytes, format_count, format_joules, format_seconds
from loadmaster.planning.plan_records import PlannedJob, PlanRecord, Rate
from loadmaster.report.core_time import core_time, peak_seconds
from loadmaster.report.cuts import Cuts
from loadmaster.report.figures import (
    allocations_of,
    bytes_alive,
    link_text,
    memory_use,
)
from loadmaster.report.text import NOTHING, comma, excess, percent, plural, shortened
from loadmaster.report.timeline import TimeUnit, largest
from loadmaster.report.view import Line, Marked, Part, Row, Shaded, Share, Table, first_rows
from loadmaster.targets.hardware import Memory
from loadmaster.workloads.job import MiniBatch, NetworkTiming

PEAK_ROWS, CUT_ROWS = 30, 200


def networks(plan: PlanRecord) -> Table:
    """Make a table of the networks, with their colours in the charts."""
    return Table(
        [
            {
                "Network": Marked(n.name, number),
                "+Source": n.source,
                ">Operators": f"{len(n.operators):,}",
                ">MACs": format_count(n.macs),
                "Precision": n.precision,
                ">Batch": str(n.batch),
                ">Mini-batches": str(n.mini_batches),
                "+Unknown operators": comma(sorted(set(n.unknown))),
            }
            for number, n in enumerate(plan.networks)
        ],
        width=24,
    )


def memories(plan: PlanRecord) -> Table:
    """Make a table of traffic and peak of each shared memory against their bounds."""
    rows: list[Row] = []
    for memory in plan.target.memories:
        cost = plan.metrics.traffic.get(memory.name)
        use = memory_use(plan, memory.name, memory.capacity)
        rows.append(
            {
                "Memory": memory.name,
                "+Link": link_text(memory),
                "+>Traffic": format_bytes(cost.value) if cost else NOTHING,
                "+>Compulsory": format_bytes(cost.lower_bound) if cost else NOTHING,
                "+>Distance": excess(cost.value, cost.lower_bound) if cost else NOTHING,
                ">Peak": format_bytes(use.peak),
                ">Lower bound": format_bytes(use.lower_bound),
                ">Capacity": format_bytes(use.capacity),
                ">Used": Share(use.peak / use.capacity if use.capacity else 0.0),
            }
        )
    return Table(rows, width=24)


def cores(plan: PlanRecord) -> Table:
    """Make a table of each core's activity over the makespan."""
    whole = plan.metrics.makespan.value or 1.0
    jobs: dict[str, list[PlannedJob]] = defaultdict(list)
    for job in plan.jobs:
        jobs[job.core].append(job)
    rows: list[Row] = []
    for core in plan.target.cores:
        mine = jobs[core.name]
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


def limits(plan: PlanRecord) -> Table:
    """Make a table of what cores do and wait for."""
    head = "What limits it: time of all cores"
    shares = core_time(plan).rows()
    return Table([{head: name, ">Share": Share(share)} for name, share in shares], limit=4)


def by_operator(job: PlannedJob) -> str:
    """Group jobs by operator, named by the first of those that are fused."""
    return f"{job.operators[0]} ({job.kind}) of {job.network}"


def job_times(plan: PlanRecord, group: Callable[[PlannedJob], str]) -> list[Row]:
    """Make a row of each group of jobs, the longest first: their seconds, as a share of the cores'
    busy time, and the share of the arrays' peak that they reach meanwhile."""
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


def buffers(plan: PlanRecord) -> Table:
    """Make a table of the peak use of each private buffer, and the first job at the peak."""
    rows: list[Row] = []
    whole = plan.metrics.makespan.value or 1.0
    for core in plan.target.cores:
        if core.buffer:
            alive = bytes_alive(allocations_of(plan, core.name))
            peak, (instant, _, most) = memory_use(plan, core.name, core.buffer).peak, largest(alive)
            mean = sum(held * (end - start) for start, end, held in alive) / whole
            during = [
                job.name
                for job in plan.jobs
                if most and job.core == core.name and job.start <= instant < job.end
            ]
            rows.append(
                {
                    "Core": core.name,
                    ">Buffer": format_bytes(core.buffer),
                    ">Peak": format_bytes(peak),
                    "Peak of buffer": Share(peak / core.buffer),
                    "Mean over the makespan": Share(mean / core.buffer),
                    "Fullest during": comma(during[:1]),
                }
            )
    return Table(rows)


def peak(plan: PlanRecord, memory: Memory, unit: TimeUnit) -> list[Part]:
    """List the buffers that are live at a memory's peak, largest first."""
    mine = allocations_of(plan, memory.name)
    instant, _, held = largest(bytes_alive(mine))
    live = [a for a in mine if a.start <= instant < a.end]
    live.sort(key=lambda a: (-a.bytes, a.tensor, a.offset))
    if not live:
        return [Line(f"Nothing is ever kept in {memory.name}.")]
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    rows: list[Row] = [
        {
            "Tensor": a.tensor,
            "Network": tensors[a.tensor].network,
            "Kind": tensors[a.tensor].kind,
            ">Size": format_bytes(a.bytes),
            ">Address": f"{a.offset:,}",
            ">Lifetime": unit.span(a.start, a.end),
            "Producer": tensors[a.tensor].producer or "there from the start",
        }
        for a in live[:PEAK_ROWS]
    ]
    rest = live[PEAK_ROWS:]
    more = (
        f"{plural(len(rest), 'smaller buffer')} with {format_bytes(sum(a.bytes for a in rest))} in"
        " all are not listed."
    )
    said = (
        f"At {unit.text(instant)}, {plural(len(live), 'buffer')} hold {format_bytes(held)} of"
        f" {memory.name}."
    )
    return [Line(said), Table(rows, more if rest else "")]


def traffic(plan: PlanRecord) -> Table:
    """Make a table of bytes moved from each place (rows) to each other (columns), darker with more
    bytes."""
    moved: Counter[tuple[str, str]] = Counter()
    for move in plan.transfers:
        moved[move.source, move.destination] += move.bytes
    known = [m.name for m in plan.target.memories] + [c.name for c in plan.target.cores]
    places = dict.fromkeys([*known, *(place for way in moved for place in way)])
    sources = [place for place in places if any(moved[place, other] for other in places)]
    to = [place for place in places if any(moved[source, place] for source in sources)]
    most = max(moved.values(), default=1)
    rows: list[Row] = []
    for source in sources:
        sizes = {place: moved[source, place] for place in to}
        cells = {
            f">{place}": Shaded(format_bytes(size) if size else NOTHING, size / most)
            for place, size in sizes.items()
        }
        total = format_bytes(sum(sizes.values()))
        rows.append({"From \\ to": source, **cells, ">Total": total})
    totals = {f">{place}": sum(moved[each, place] for each in sources) for place in to}
    totals[">Total"] = sum(totals.values())
    rows.append(
        {"From \\ to": "Total"} | {head: format_bytes(size) for head, size in totals.items()}
    )
    return Table(rows)


def energy(plan: PlanRecord) -> Table:
    """Make a table of energy: of each memory for bytes over its link, of each core for its jobs and
    bytes through its buffer."""
    metrics = plan.metrics
    inside = dict.fromkeys(metrics.energy_by, 0.0)
    for job in plan.jobs:
        inside[job.core] += job.energy
    whole = metrics.energy.value
    rows: list[Row] = [
        {
            "Memory or core": place,
            ">Arithmetic and array": format_joules(inside[place]),
            ">Bytes in and out": format_joules(taken - inside[place]),
            ">Energy": format_joules(taken),
            "Share": Share(taken / (whole or 1.0)),
        }
        for place, taken in metrics.energy_by.items()
    ]
    if plan.target.static_power:
        static = whole - sum(metrics.energy_by.values())
        rows.append(
            dict.fromkeys(rows[0], "")
            | {
                "Memory or core": "static power",
                ">Energy": format_joules(static),
                "Share": Share(static / (whole or 1.0)),
            }
        )
    return Table(rows)


def cut_operators(cuts: Cuts) -> Table:
    """Make a table of operators in pieces: how each is cut and why."""
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
    return first_rows(rows, CUT_ROWS, "operator")


def mini_batches(batches: Iterable[MiniBatch], timings: Iterable[NetworkTiming]) -> Table:
    """Make a table of the mini-batches with a release time or a deadline, and whether it is met,
    those that miss it first."""
    deadlines = {timing.network: timing.deadline for timing in timings}
    rows: list[Row] = []
    for batch in sorted(batches, key=lambda batch: not batch.missed):
        if batch.network in deadlines:
            due = deadlines[batch.network]
            met = "missed" if batch.missed else "met"
            rows.append(
                {
                    "Network": batch.network,
                    ">Mini-batch": str(batch.number),
                    ">Released": format_seconds(batch.release),
                    ">Latency": format_seconds(batch.latency),
                    ">Deadline": "" if due is None else format_seconds(due),
                    "": "" if due is None else met,
                }
            )
    return Table(rows, limit=8, width=24)
