"""The summary of a mapping in the terminal: its figures and bounds, each core's jobs, and late
mini-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.core.provenance import described, weakest
from loadmaster.core.units import format_rate, format_seconds
from loadmaster.mapping.answer import JobMapping
from loadmaster.workloads.network_timing import MiniBatch, NetworkTiming

_CORES_SHOWN = 32
_JOBS_SHOWN = 4
_NETWORKS_SHOWN = 40
_NARROW = 6


def mapping_summary(mapping: JobMapping, unit: str) -> RenderableType:
    """Make tables of totals, then of every core; ``unit`` is that of arithmetic rates."""
    return Group(_pairs(_totals(mapping, unit)), Text(), _cores(mapping))


def front_summary(front: tuple[JobMapping, ...], unit: str) -> RenderableType:
    """Make a table of the mappings of a Pareto front; ``unit`` is that of arithmetic rates."""
    table = _columns("", ">makespan", ">energy", ">throughput", "status", "costs")
    for number, mapping in enumerate(front):
        energy = "" if mapping.energy is None else f"{mapping.energy:.4g} J"
        rate = "" if mapping.throughput is None else format_rate(mapping.throughput, unit)
        table.add_row(
            str(number),
            format_seconds(mapping.makespan),
            energy,
            rate,
            mapping.status,
            str(weakest(mapping.costs)),
        )
    return table


def latency_summary(
    served: Sequence[MiniBatch], timings: Mapping[str, NetworkTiming]
) -> RenderableType:
    """A row for every mini-batch of every network, and how many came too late."""
    table = _columns("network", ">mini-batch", ">released", ">latency", ">deadline", "")
    for each in served[:_NETWORKS_SHOWN]:
        due = timings[each.network].deadline
        deadline = "" if due is None else format_seconds(due)
        late = "missed" if each.missed else ""
        table.add_row(
            Text(each.network),
            str(each.number),
            format_seconds(each.release),
            format_seconds(each.latency),
            deadline,
            late,
        )
    missed = sum(each.missed for each in served)
    return Group(Text(), table, Text(f"{missed} of {len(served)} deadlines missed"))


def _totals(mapping: JobMapping, unit: str) -> list[tuple[str, str]]:
    groups = int(mapping.group.max(initial=0)) + 1
    rows = [("Status", mapping.status + (" (stopped early)" if mapping.interrupted else ""))]
    rows.append(
        (
            "Jobs",
            f"{len(mapping.jobs)} on {len(mapping.cores)} cores"
            + (f", in {groups} groups" if groups > 1 else ""),
        )
    )
    label = f", {weakest(mapping.costs)}"
    cycles = "" if mapping.cycles is None else f" ({mapping.cycles} cycles)"
    rows.append(("Makespan", f"{format_seconds(mapping.makespan)}{cycles}{label}"))
    if mapping.throughput is not None:
        rows.append(("Throughput", f"{format_rate(mapping.throughput, unit)}{label}"))
    if mapping.energy is not None:
        rows.append(("Energy", f"{mapping.energy:.4g} J{label}"))
    rows.append(("Costs", described(mapping.costs)))
    joules = {"energy": " J", "edp": " J s"}.get(mapping.objective)
    bound = (
        format_seconds(mapping.lower_bound)
        if joules is None
        else f"{mapping.lower_bound:.4g}{joules}"
    )
    rows.append(("Lower bound", f"{bound} ({mapping.limit})"))
    rows.append(("Gap", f"{mapping.gap:.3%}"))
    rows.append(("Strategy", f"{mapping.strategy}, seed {mapping.seed}, {mapping.samples} samples"))
    return [
        *rows,
        (
            "Took",
            f"{format_seconds(mapping.seconds)} ({format_seconds(mapping.cpu_seconds)} of CPU)",
        ),
    ]


def _cores(mapping: JobMapping) -> Table:
    table = _columns("core", ">jobs", ">busy", "first jobs")
    for core, name in enumerate(mapping.cores[:_CORES_SHOWN]):
        mine = np.flatnonzero(mapping.core == core)
        mine = mine[np.argsort(mapping.start[mine], kind="stable")]
        busy = (
            float((mapping.end[mine] - mapping.start[mine]).sum()) / mapping.makespan
            if mapping.makespan > 0
            else 0.0
        )
        shown = ", ".join(mapping.jobs[job] for job in mine[:_JOBS_SHOWN].tolist()) + (
            ", ..." if len(mine) > _JOBS_SHOWN else ""
        )
        table.add_row(Text(name), str(len(mine)), f"{busy:.1%}", Text(shown))
    if len(mapping.cores) > _CORES_SHOWN:
        table.add_row(f"and {len(mapping.cores) - _CORES_SHOWN} more")
    return table


def _columns(*names: str) -> Table:
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False
    )
    for name in names:
        figure = name.startswith(">")
        # What is listed gives way to what is counted.
        least = _NARROW if figure or name != "first jobs" else None
        table.add_column(
            name.removeprefix(">"),
            justify="right" if figure else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=least,
        )
    return table


def _pairs(rows: list[tuple[str, str]]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table
