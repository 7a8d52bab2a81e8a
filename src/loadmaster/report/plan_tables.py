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
from loadmaster.report.text import percent, plural, shortened
from loadmaster.report.timeline import TimeUnit, largest
from loadmaster.report.view import Line, Part, Share, Table, first_rows
from loadmaster.targets.hardware import Memory
from loadmaster.workloads.job import MiniBatch, NetworkTiming

PEAK_ROWS, TRAFFIC_ROWS, CUT_ROWS = 30, 60, 200


def networks(plan: PlanRecord) -> Table:
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


def memories(plan: PlanRecord) -> Table:
    """Make a table of the peak of each shared memory against its bound and its capacity."""
    return _uses(plan, [(m.name, link_text(m), m.capacity) for m in plan.target.memories])


def buffers(plan: PlanRecord) -> Table:
    """Make a table of the peak use of each private buffer."""
    return _uses(plan, [(c.name, "private", c.buffer) for c in plan.target.cores if c.buffer])


def _uses(plan: PlanRecord, held: Iterable[tuple[str, str, int]]) -> Table:
    """Make a table of memories by name, link and capacity."""
    rows = []
    for name, link, capacity in held:
        use = memory_use(plan, name, capacity)
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


def cores(plan: PlanRecord) -> Table:
    """Make a table of each core's activity over the makespan."""
    whole = plan.metrics.makespan.value or 1.0
    jobs: dict[str, list[PlannedJob]] = defaultdict(list)
    for job in plan.jobs:
        jobs[job.core].append(job)
    rows = []
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


def job_times(plan: PlanRecord, group: Callable[[PlannedJob], str]) -> list[dict[str, str]]:
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


def peak(plan: PlanRecord, memory: Memory, unit: TimeUnit) -> list[Part]:
    """List the buffers that are live at a memory's peak, largest first."""
    mine = allocations_of(plan, memory.name)
    instant, _, held = largest(bytes_alive(mine))
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


def traffic(plan: PlanRecord) -> Table:
    """Make a table of bytes moved from each place to each other, most bytes first."""
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


def energy(plan: PlanRecord) -> Table:
    """Make a table of energy: of each memory for bytes over its link, of each core for its jobs and
    bytes through its buffer."""
    metrics = plan.metrics
    inside = dict.fromkeys(metrics.energy_by, 0.0)
    for job in plan.jobs:
        inside[job.core] += job.energy
    whole = metrics.energy.value
    places = [
        (place, format_joules(inside[place]), format_joules(taken - inside[place]), taken)
        for place, taken in metrics.energy_by.items()
    ]
    if plan.target.static_power:
        static = whole - sum(metrics.energy_by.values())
        places.append(("static power", "", "", static))
    return Table(
        [
            {
                "Memory or core": place,
                ">Arithmetic and array": array,
                ">Bytes in and out": moved,
                ">Energy": format_joules(taken),
                "Share": Share(taken / (whole or 1.0)),
            }
            for place, array, moved, taken in places
        ]
    )


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
                    ">Deadline": "" if due is None else format_seconds(due),
                    "": "" if due is None else "missed" if batch.missed else "met",
                }
            )
    return Table(rows, limit=8, width=24)
