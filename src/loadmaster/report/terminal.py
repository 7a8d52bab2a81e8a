"""The summary of a plan in the terminal, which fits one screen and is plain text for log files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.core.units import (
    format_bytes,
    format_count,
    format_joules,
    format_rate,
    format_seconds,
    rate_unit,
)
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report import figures
from loadmaster.report.core_time import core_time
from loadmaster.report.cuts import cuts_of
from loadmaster.report.text import clipped, excess, percent, plural, printable, shortfall, warnings

if TYPE_CHECKING:
    from loadmaster.planning.what_if import Change

KINDS_SHOWN = 8
CORES_SHOWN = 16
_MINI_BATCHES_SHOWN = 8
LIMITS_SHOWN = 4
HALF_WIDTH = 16
"""The most characters of a name in one of two tables side by side in 80 columns."""


def summary(
    plan: PlanRecord,
    *,
    seconds: float | None = None,
    cpu_seconds: float | None = None,
    changes: Sequence[Change] = (),
) -> Group:
    """Make the summary: what was planned, its figures, and the assumptions behind them.

    Parameters
    ----------
    plan : PlanRecord
        The finished plan.
    seconds, cpu_seconds : float, optional
        Seconds that planning took, by the clock and in processor time, if it was just planned.
    changes : sequence of Change
        What :func:`loadmaster.what_if` found.
    """
    parts: list[RenderableType] = [
        *warnings(kind for network in plan.networks for kind in network.unknown),
        _configuration(plan),
        _networks(plan),
        _totals(plan),
        _limits(plan),
        *([what_if_table(plan, changes)] if changes else []),
        *_mini_batches(plan),
        _memories(plan),
    ]
    parts += [_side_by_side(_cores(plan), _kinds(plan)), _closing(plan, seconds, cpu_seconds)]
    return Group(*parts)


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Make a table without lines; columns whose name starts with ``>`` hold figures and are aligned
    right."""
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False
    )
    for column in columns:
        figure = column.startswith(">")
        table.add_column(
            Text(column.removeprefix(">")),
            justify="right" if figure else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _side_by_side(*tables: Table) -> Table:
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_row(*tables)
    return grid


def _name(name: str, width: int = 24) -> str:
    return clipped(printable(name), width)


def _configuration(plan: PlanRecord) -> Text:
    memories = ", ".join(figures.memory_text(memory) for memory in plan.target.memories)
    return Text(f"{printable(plan.target.name)}: {figures.core_groups(plan)}; {memories}\n")


def _networks(plan: PlanRecord) -> Table:
    columns = ("Network", ">Operators", ">MACs", "Precision", ">Batch", ">Mini-batches")
    return plain_table(
        columns,
        (
            (
                _name(n.name),
                f"{len(n.operators):,}",
                format_count(n.macs),
                n.precision,
                str(n.batch),
                str(n.mini_batches),
            )
            for n in plan.networks
        ),
    )


def _totals(plan: PlanRecord) -> Table:
    m = plan.metrics
    rates = (
        ("Throughput", m.throughput, rate_unit(network.precision for network in plan.networks)),
        ("Inferences", m.inferences_per_second, "/s"),
    )
    rows = [
        (
            "Makespan",
            format_seconds(m.makespan.value),
            format_seconds(m.makespan.lower_bound),
            excess(m.makespan),
        )
    ]
    energy = m.energy
    rows += figures.special_costs(plan)
    rows.append(
        ("Energy", format_joules(energy.value), format_joules(energy.lower_bound), excess(energy))
    )
    rows += [
        (name, format_rate(r.value, unit), format_rate(r.upper_bound, unit), shortfall(r))
        for name, r, unit in rates
    ]
    rows += [
        (f"Traffic {_name(k)}", format_bytes(c.value), format_bytes(c.lower_bound), excess(c))
        for k, c in m.traffic.items()
    ]
    return plain_table(("\nEstimate", ">\nValue", ">\nBound", "\nDistance"), rows)


def _limits(plan: PlanRecord) -> Table:
    """What the plan waits for most."""
    rows = [(name, percent(share)) for name, share in core_time(plan).rows()[:LIMITS_SHOWN]]
    return plain_table(("\nWhat limits it: time of all cores", ">\nShare"), rows)


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
    return plain_table(("\nWhat if: quick plans", f">\n{name}", ">\nChange"), rows)


def _mini_batches(plan: PlanRecord) -> list[Table]:
    """Make tables of mini-batches with release times or deadlines, late ones first."""
    rows = sorted(figures.timed_mini_batches(plan), key=lambda row: row[-1] != "missed")
    if not rows:
        return []
    shown = [(_name(name), *rest) for name, *rest in rows[:_MINI_BATCHES_SHOWN]]
    if len(rows) > len(shown):
        shown.append((f"{len(rows) - len(shown)} more", "", "", "", "", ""))
    return [
        plain_table(
            ("\nMini-batch of", ">\nNumber", ">\nReleased", ">\nLatency", ">\nDeadline", ""), shown
        )
    ]


def _memories(plan: PlanRecord) -> Table:
    uses = ((m.name, figures.memory_use(plan, m.name, m.capacity)) for m in plan.target.memories)
    rows = (
        (
            _name(name),
            format_bytes(u.peak),
            format_bytes(u.lower_bound),
            format_bytes(u.capacity),
            percent(u.peak / u.capacity if u.capacity else 0.0),
        )
        for name, u in uses
    )
    return plain_table(("\nMemory", ">\nPeak", ">\nLower bound", ">\nCapacity", ">\nUsed"), rows)


def _cores(plan: PlanRecord) -> Table:
    rows = figures.core_figures(plan)
    lines = [
        (_name(r.core.name, HALF_WIDTH), f"{r.jobs:,}", percent(r.busy), percent(r.compute.value))
        for r in rows[:CORES_SHOWN]
    ]
    if rest := rows[CORES_SHOWN:]:
        lines.append((f"{len(rest)} more", f"{sum(r.jobs for r in rest):,}", "", ""))
    return plain_table(("\nCore", ">\nJobs", ">\nBusy", ">\nComputing"), lines)


def _kinds(plan: PlanRecord) -> Table:
    kinds = figures.time_by_kind(plan)
    lines = [
        (_name(kind.name, HALF_WIDTH), f"{kind.jobs:,}", percent(kind.share), percent(kind.of_peak))
        for kind in kinds[:KINDS_SHOWN]
    ]
    if rest := kinds[KINDS_SHOWN:]:
        lines.append(
            (
                f"{len(rest)} more",
                f"{sum(kind.jobs for kind in rest):,}",
                percent(sum(kind.share for kind in rest)),
                "",
            )
        )
    return plain_table(("\nOperator", ">\nJobs", ">\nOf time", ">\nOf peak"), lines)


def _closing(plan: PlanRecord, seconds: float | None, cpu_seconds: float | None) -> Text:
    """Make the last lines: status, notes, planning time, and that the figures are estimates."""
    took = f"{plural(len(plan.jobs), 'job')}, seed {plan.seed}."
    if seconds is not None and cpu_seconds is not None:
        spent = f"{format_seconds(seconds)} ({format_seconds(cpu_seconds)} of processor time)"
        took = f"Planned {plural(len(plan.jobs), 'job')} in {spent}, seed {plan.seed}."
    cut = cuts_of(plan).summary()
    lines = (
        [f"Note: {printable(note)}" for note in plan.notes]
        + ([cut] if cut else [])
        + figures.gain(plan)
    )
    return Text(
        "\n".join(
            (
                "",
                *lines,
                f"Status {figures.verdict(plan)}.",
                took,
                figures.figures_rest_on(plan.costs),
            )
        )
    )
