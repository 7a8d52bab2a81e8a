"""The figures of a plan as rows of tables, for the page and the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadmaster.core.provenance import Label, Provenance, described, weakest
from loadmaster.core.units import format_bandwidth, format_bytes, format_seconds
from loadmaster.planning.plan_records import (
    Cost,
    MemoryUse,
    PlannedAllocation,
    PlannedJob,
    PlannedTransfer,
    PlanRecord,
    Rate,
)
from loadmaster.report.core_time import peak_seconds
from loadmaster.report.text import clipped, excess, percent, printable, shortened
from loadmaster.report.timeline import Steps, bytes_alive
from loadmaster.targets.hardware import Core, Memory

_EDP_UNITS = ((1.0, "J s"), (1e-3, "mJ s"), (1e-6, "uJ s"), (1e-9, "nJ s"))
_ENERGY_UNITS = ((1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ"), (1e-9, "nJ"), (1e-12, "pJ"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def figures_rest_on(costs: Sequence[Provenance]) -> str:
    """Say in a sentence what times, traffic and energy rest on."""
    meanings = {
        Label.ESTIMATED: "estimates of an analytical model, not measurements",
        Label.CALIBRATED: "those of an analytical model whose figures were fitted to measurements",
        Label.PUBLISHED: "worked out from published costs",
        Label.MEASURED: "worked out from measured costs",
    }
    return printable(
        f"Times, traffic and energy are {meanings[weakest(costs)]}; costs: {described(costs)}."
    )


@dataclass(frozen=True)
class CoreFigures:
    """A core's activity over the makespan; shares are of the makespan."""

    core: Core
    jobs: int
    busy: float
    compute: Rate


@dataclass(frozen=True)
class BufferFigures:
    """The use of a core's private buffer."""

    core: Core
    use: MemoryUse
    mean: float
    fullest: str


def title(plan: PlanRecord) -> str:
    """Name the networks and the target."""
    names = [printable(network.name) for network in plan.networks]
    return f"{shortened(names) or 'no network'} on {printable(plan.target.name)}"


def verdict(plan: PlanRecord) -> str:
    """Explain the plan's status in a sentence."""
    what = objective_name(plan)
    if plan.status == "optimal":
        return f"optimal: no plan has a lower {what}"
    late = (
        f"{plan.missed} of {len(plan.mini_batches)} mini-batches miss their deadlines; "
        if plan.missed
        else ""
    )
    gap = plan.objective.gap
    far = f"at most {percent(gap)} above" if gap is not None else "not known to be near"
    return f"{printable(plan.status)}: {late}{far} the best possible {what}"


def gain(plan: PlanRecord) -> list[str]:
    """Say in a sentence what the separate plan, this plan and any plan reach; nothing where no
    separate plan was improved upon."""
    if len(plan.search) < 2:
        return []
    separate, together, best = (
        objective_text(plan, value)
        for value in (plan.search[0].value, plan.objective.value, plan.objective.lower_bound)
    )
    return [
        f"Planned separately {separate}, together {together}, at best {best}"
        f" ({objective_name(plan)})."
    ]


def objective_name(plan: PlanRecord) -> str:
    """Name the plan's objective in words."""
    words = {
        "throughput": "makespan",
        "latency": f"latency of {printable(plan.objective.network)}",
        "edp": "energy-delay product",
    }
    return words.get(plan.objective.name, printable(plan.objective.name))


def objective_unit(plan: PlanRecord, value: float) -> tuple[float, str]:
    """Choose the largest unit of the objective in which a value is at least one: its size in SI
    units, and its name."""
    units = {"energy": _ENERGY_UNITS, "edp": _EDP_UNITS}.get(plan.objective.name, _TIME_UNITS)
    return next((unit for unit in units if value >= unit[0]), units[-1])


def objective_text(plan: PlanRecord, value: float) -> str:
    """Format a value of the objective with its unit."""
    scale, name = objective_unit(plan, value)
    return f"{value / scale:.3g} {name}" if value < 999.5 * scale else f"{value / scale:.0f} {name}"


def special_costs(plan: PlanRecord) -> list[tuple[str, str, str, str]]:
    """List the figures that matter for this plan's goal only: name, value, bound, distance."""
    rows = []
    if plan.objective.name == "edp":
        cost = Cost(plan.objective.value, plan.objective.lower_bound)
        rows.append(
            (
                "Energy x makespan",
                objective_text(plan, cost.value),
                objective_text(plan, cost.lower_bound),
                excess(cost),
            )
        )
    timed = {timing.network for timing in plan.timings} | {plan.objective.network}
    for name, cost in plan.metrics.latency.items():
        if name in timed:
            rows.append(
                (
                    f"Latency {clipped(printable(name), 24)}",
                    format_seconds(cost.value),
                    format_seconds(cost.lower_bound),
                    excess(cost),
                )
            )
    return rows


def timed_mini_batches(plan: PlanRecord) -> list[tuple[str, str, str, str, str, str]]:
    """List network, number, release, latency, deadline and outcome of every mini-batch with a
    release time or a deadline."""
    timings = {timing.network: timing for timing in plan.timings}
    rows = []
    for batch in plan.mini_batches:
        if batch.network in timings:
            deadline = timings[batch.network].deadline
            outcome = "missed" if batch.missed else "" if deadline is None else "met"
            due = "" if deadline is None else format_seconds(deadline)
            rows.append(
                (
                    printable(batch.network),
                    str(batch.number),
                    format_seconds(batch.release),
                    format_seconds(batch.latency),
                    due,
                    outcome,
                )
            )
    return rows


def core_figures(plan: PlanRecord) -> list[CoreFigures]:
    """Return one row per core, in the target's order."""
    makespan = plan.metrics.makespan.value
    count: dict[str, int] = defaultdict(int)
    busy: dict[str, float] = defaultdict(float)
    compute: dict[str, float] = defaultdict(float)
    for job in plan.jobs:
        count[job.core] += 1
        busy[job.core] += job.end - job.start
        compute[job.core] += job.compute
    rows = []
    for core in plan.target.cores:
        share = compute[core.name] / makespan if makespan else 0.0
        rate = plan.metrics.utilisation.get(core.name, Rate(share, 1.0))
        rows.append(
            CoreFigures(
                core, count[core.name], busy[core.name] / makespan if makespan else 0.0, rate
            )
        )
    return rows


@dataclass(frozen=True)
class JobTime:
    """Jobs that belong together: how many, their seconds, their share of the cores' busy time, and
    the share of the arrays' peak that they reach meanwhile."""

    name: str
    jobs: int
    seconds: float
    share: float
    of_peak: float


def time_by_kind(plan: PlanRecord) -> list[JobTime]:
    """List the kinds of operators, those that take longest first."""
    return _job_times(plan, lambda job: job.kind)


def time_by_operator(plan: PlanRecord) -> list[JobTime]:
    """List the operators, by the first of those that are fused, those that take longest first."""
    several = len(plan.networks) > 1
    return _job_times(
        plan,
        lambda job: f"{job.operators[0]} ({job.kind})" + (f" of {job.network}" if several else ""),
    )


def _job_times(plan: PlanRecord, name: Callable[[PlannedJob], str]) -> list[JobTime]:
    cores = {core.name: core for core in plan.target.cores}
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for job in plan.jobs:
        row = found[name(job)]
        row[0] += 1
        row[1] += job.end - job.start
        row[2] += peak_seconds(job, cores.get(job.core))
    total = sum(spent for _, spent, _ in found.values()) or 1.0
    rows = [
        JobTime(name, int(jobs), spent, spent / total, peak / spent if spent else 0.0)
        for name, (jobs, spent, peak) in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.share, row.name))


def allocations_of(plan: PlanRecord, memory: str) -> list[PlannedAllocation]:
    """Return the allocations of a memory, or of the private buffer of the core of that name."""
    return [a for a in plan.allocations if a.memory == memory]


def memory_use(plan: PlanRecord, memory: str, capacity: int) -> MemoryUse:
    """Return the plan's own figures of a memory; if it has none, count them from the
    allocations."""
    if memory in plan.metrics.memory:
        return plan.metrics.memory[memory]
    mine = allocations_of(plan, memory)
    return MemoryUse(
        max((a.offset + a.bytes for a in mine), default=0),
        int(max(bytes_alive(mine).values, default=0)),
        capacity,
    )


def buffer_figures(plan: PlanRecord) -> list[BufferFigures]:
    """Return one row per core that has a private buffer; ``fullest`` is the first job at the peak
    of its use."""
    rows = []
    for core in plan.target.cores:
        if core.buffer:
            alive = bytes_alive(allocations_of(plan, core.name))
            use = memory_use(plan, core.name, core.buffer)
            rows.append(
                BufferFigures(
                    core,
                    use,
                    alive.mean(plan.metrics.makespan.value),
                    _fullest_job(plan, core, alive),
                )
            )
    return rows


def _fullest_job(plan: PlanRecord, core: Core, alive: Steps) -> str:
    if not alive.values:
        return ""
    instant = alive.peak_instant()
    return next(
        (job.name for job in plan.jobs if job.core == core.name and job.start <= instant < job.end),
        "",
    )


def copies(plan: PlanRecord) -> list[PlannedTransfer]:
    """Return the copies between memories, by start."""
    return sorted((t for t in plan.transfers if not t.job), key=lambda t: (t.start, t.end, t.name))


def places(plan: PlanRecord) -> list[str]:
    """Return the ends of all transfers: shared memories, then cores."""
    return [m.name for m in plan.target.memories] + [c.name for c in plan.target.cores]


def traffic_matrix(plan: PlanRecord) -> dict[tuple[str, str], int]:
    """Sum the bytes moved from each place to each other one over the whole plan."""
    moved: dict[tuple[str, str], int] = defaultdict(int)
    for transfer in plan.transfers:
        moved[transfer.source, transfer.destination] += transfer.bytes
    return dict(moved)


def link_text(memory: Memory) -> str:
    """Format the bandwidth of a memory's link."""
    if memory.read_bandwidth == memory.write_bandwidth:
        return format_bandwidth(memory.read_bandwidth)
    return (
        f"{format_bandwidth(memory.read_bandwidth)} read,"
        f" {format_bandwidth(memory.write_bandwidth)} write"
    )


def memory_text(memory: Memory) -> str:
    """Describe a memory, such as ``"dram 4.00 GiB at 34.0 GB/s"``."""
    return f"{printable(memory.name)} {format_bytes(memory.capacity)} at {link_text(memory)}"


def core_groups(plan: PlanRecord) -> str:
    """Describe the cores by kind, such as ``"3 weight-stationary 32x32 at 1.00 GHz, 1
    row-stationary ..."``."""
    groups: dict[str, int] = defaultdict(int)
    for core in plan.target.cores:
        groups[f"{core.style} {core.rows}x{core.columns} at {core.clock / 1e9:.3g} GHz"] += 1
    return ", ".join(f"{count} {group}" for group, count in groups.items())


def operators_of(names: Sequence[str]) -> str:
    """List the operators fused into a job, the first few by name."""
    return shortened([printable(name) for name in names])
