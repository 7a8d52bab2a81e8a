"""Figures and texts of a plan that several reports share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from loadmaster.core.provenance import Label, Provenance, described, weakest
from loadmaster.core.units import (
    ENERGIES,
    TIMES,
    Units,
    format_bandwidth,
    format_bytes,
    format_count,
    format_joules,
    format_rate,
    format_seconds,
    largest_unit,
    rate_unit,
)
from loadmaster.planning.plan_records import (
    Cost,
    MemoryUse,
    Objective,
    PlannedAllocation,
    PlannedTransfer,
    PlanRecord,
    Rate,
)
from loadmaster.report.text import above_the_best, clipped, shortened
from loadmaster.report.timeline import Steps, total_over_time
from loadmaster.report.view import Figure, bounded
from loadmaster.targets.hardware import Memory

_MEANINGS = {
    Label.ESTIMATED: "estimates of an analytical model, not measurements",
    Label.CALIBRATED: "those of an analytical model whose figures were fitted to measurements",
    Label.PUBLISHED: "worked out from published costs",
    Label.MEASURED: "worked out from measured costs",
}


def figures_rest_on(costs: Sequence[Provenance]) -> str:
    """Return a sentence on the sources of times, traffic and energy."""
    return f"Times, traffic and energy are {_MEANINGS[weakest(costs)]}; costs: {described(costs)}."


def title(plan: PlanRecord) -> str:
    """Return the title of a plan: its networks and its target."""
    names = shortened([network.name for network in plan.networks])
    return f"{names or 'no network'} on {plan.target.name}"


def verdict(plan: PlanRecord) -> str:
    """Return a sentence that explains the plan's status."""
    what = objective_name(plan)
    if plan.status == "optimal":
        return f"optimal: no plan has a lower {what}"
    late = (
        f"{plan.missed} of {len(plan.mini_batches)} mini-batches miss their deadlines; "
        if plan.missed
        else ""
    )
    return f"{plan.status}: {late}{above_the_best(plan.objective.gap)} {what}"


def gain(plan: PlanRecord) -> str:
    """Return a sentence with the objectives of the separate plan and this plan, and the bound;
    empty if this is the separate plan."""
    if len(plan.search) < 2:
        return ""
    separate, together, best = (
        objective_text(plan, value)
        for value in (plan.search[0].value, plan.objective.value, plan.objective.lower_bound)
    )
    return (
        f"Planned separately {separate}, together {together}, at best {best}"
        f" ({objective_name(plan)})."
    )


def objective_name(plan: PlanRecord) -> str:
    """Name the plan's objective in words."""
    words = {
        "throughput": "makespan",
        "latency": f"latency of {plan.objective.network}",
        "edp": "energy-delay product",
    }
    return words.get(plan.objective.name, plan.objective.name)


def objective_units(plan: PlanRecord) -> Units:
    """Return the units of the objective."""
    joule_seconds: Units = [(size, f"{name} s") for size, name in ENERGIES[:4]]
    return {"energy": ENERGIES, "edp": joule_seconds}.get(plan.objective.name, TIMES)


def objective_text(plan: PlanRecord, value: float) -> str:
    """Format a value of the objective with its unit."""
    scale, name = largest_unit(value, objective_units(plan))
    return f"{value / scale:.3g} {name}" if value < 999.5 * scale else f"{value / scale:.0f} {name}"


def figures(plan: PlanRecord) -> list[Figure]:
    """Return the plan's figures with their bounds."""
    metrics, objective = plan.metrics, plan.objective
    rows: list[tuple[str, Cost | Objective | Rate, Callable[[float], str]]]
    rows = [("Makespan", metrics.makespan, format_seconds)]
    if objective.name == "edp":
        rows.append(("Energy x makespan", objective, partial(objective_text, plan)))
    timed = {timing.network for timing in plan.timings} | {objective.network}
    for name, latency in metrics.latency.items():
        if name in timed:
            rows.append((f"Latency {clipped(name, 24)}", latency, format_seconds))
    unit = rate_unit(network.precision for network in plan.networks)
    rows += [
        ("Energy", metrics.energy, format_joules),
        ("Throughput", metrics.throughput, partial(format_rate, unit=unit)),
        ("Inferences per second", metrics.inferences_per_second, format_count),
    ]
    for name, traffic in metrics.traffic.items():
        rows.append((f"Traffic {clipped(name, 24)}", traffic, format_bytes))
    found = []
    for name, of, shown in rows:
        bound = of.upper_bound if isinstance(of, Rate) else of.lower_bound
        found.append(bounded(name, of.value, bound, shown, upper=isinstance(of, Rate)))
    return found


def allocations_of(plan: PlanRecord, memory: str) -> list[PlannedAllocation]:
    """Return the allocations of a memory, or of the private buffer of the core of that name."""
    return [a for a in plan.allocations if a.memory == memory]


def bytes_alive(allocations: Iterable[PlannedAllocation]) -> Steps:
    """Return the bytes alive over time, in steps."""
    return total_over_time((a.start, a.end, a.bytes) for a in allocations)


def memory_use(plan: PlanRecord, memory: str, capacity: int) -> MemoryUse:
    """Return the plan's use of a memory; a memory that the plan does not name has none."""
    return plan.metrics.memory.get(memory, MemoryUse(0, 0, capacity))


def copies(plan: PlanRecord) -> list[PlannedTransfer]:
    """Return the copies between memories."""
    return [transfer for transfer in plan.transfers if not transfer.job]


def link_text(memory: Memory) -> str:
    """Format the bandwidth of a memory's link."""
    read = format_bandwidth(memory.read_bandwidth)
    write = format_bandwidth(memory.write_bandwidth)
    return read if read == write else f"{read} read, {write} write"


def machine_text(plan: PlanRecord) -> str:
    """Describe the cores by kind, and the memories: ``"edge-npu: 3 weight-stationary 32x32 at 1
    GHz; dram 4.00 GiB at 34.0 GB/s"``."""
    groups = Counter(
        f"{core.style} {core.rows}x{core.columns} at {core.clock / 1e9:.3g} GHz"
        for core in plan.target.cores
    )
    cores = ", ".join(f"{count} {group}" for group, count in groups.items())
    memories = ", ".join(
        f"{m.name} {format_bytes(m.capacity)} at {link_text(m)}" for m in plan.target.memories
    )
    return f"{plan.target.name}: {cores}; {memories}"
