"""Two plans side by side: what each reaches, and how far the second is from the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.core.provenance import costs_json
from loadmaster.core.units import format_bytes, format_count, format_joules, format_seconds
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report import figures
from loadmaster.report.text import NOTHING, percent, printable

COLUMNS = ("", ">first", ">second", ">change")
KINDS = 12


@dataclass(frozen=True)
class Row:
    """A figure of both plans; None where one has none. ``key`` is its name in JSON, ``text``
    formats it."""

    key: str
    name: str
    first: float | None
    second: float | None
    text: Callable[[float], str]

    @property
    def change(self) -> float | None:
        """How much more the second is, as a share of the first; None where that has no meaning."""
        return self.second / self.first - 1 if self.first and self.second is not None else None

    def cells(self) -> tuple[str, str, str, str]:
        """The row as text, in the order of :data:`COLUMNS`."""
        first, second = (
            NOTHING if value is None else self.text(value) for value in (self.first, self.second)
        )
        return self.name, first, second, NOTHING if self.change is None else signed(self.change)


def signed(change: float) -> str:
    """Format a change as ``"+12.3 %"``; none is ``"the same"``."""
    return "the same" if not change else f"{'+' if change > 0 else '-'}{percent(abs(change))}"


def rows(first: PlanRecord, second: PlanRecord) -> Iterator[Row]:
    """Iterate over the figures of two plans: times, rates, energy, and bytes and peaks of every
    memory."""

    def row(
        key: str, name: str, of: Callable[[PlanRecord], float | None], text: Callable[[float], str]
    ) -> Row:
        return Row(key, name, of(first), of(second), text)

    yield row("makespan", "Makespan", lambda plan: plan.metrics.makespan.value, format_seconds)
    yield row(
        "lower_bound", "Lower bound", lambda plan: plan.metrics.makespan.lower_bound, format_seconds
    )
    yield row(
        "inferences_per_second",
        "Inferences per second",
        lambda plan: plan.metrics.inferences_per_second.value,
        format_count,
    )
    yield row("energy", "Energy", lambda plan: plan.metrics.energy.value, format_joules)
    yield row("missed", "Missed deadlines", lambda plan: float(plan.missed), format_count)
    yield row("jobs", "Jobs", lambda plan: float(len(plan.jobs)), lambda value: f"{value:,.0f}")
    for memory in _both(
        [m.name for m in first.target.memories], [m.name for m in second.target.memories]
    ):
        yield row(
            f"traffic.{memory}",
            f"Traffic of {memory}",
            partial(_traffic, memory=memory),
            format_bytes,
        )
        yield row(
            f"peak.{memory}",
            f"Peak of {memory}",
            partial(_peak, memory=memory),
            format_bytes,
        )


def kinds(first: PlanRecord, second: PlanRecord) -> list[Row]:
    """Sum the seconds of cores by kind of operator, the largest differences first."""
    spent = [_seconds_by_kind(plan) for plan in (first, second)]
    found = [
        Row(kind, kind, spent[0].get(kind, 0.0), spent[1].get(kind, 0.0), format_seconds)
        for kind in _both(list(spent[0]), list(spent[1]))
    ]
    return sorted(found, key=lambda row: (-abs((row.second or 0.0) - (row.first or 0.0)), row.name))


def comparison_json(first: PlanRecord, second: PlanRecord) -> dict[str, Any]:
    """Return every figure of both plans and its change, by name, as plain data; seconds, joules,
    bytes."""
    return {
        "plans": [
            {"title": figures.title(plan), "status": plan.status, "seed": plan.seed}
            for plan in (first, second)
        ],
        "figures": {
            row.key: {"first": row.first, "second": row.second, "change": row.change}
            for row in rows(first, second)
        },
        "kinds": {
            row.key: {"first": row.first, "second": row.second, "change": row.change}
            for row in kinds(first, second)
        },
        "costs": costs_json(first.costs),
    }


def comparison_summary(first: PlanRecord, second: PlanRecord) -> RenderableType:
    """Make a table of the figures of both plans."""
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False
    )
    for column in COLUMNS:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left"
        )
    for row in rows(first, second):
        table.add_row(*(Text(printable(cell)) for cell in row.cells()))
    names = [
        Text(f"{which}: {figures.title(plan)}, {plan.status}")
        for which, plan in (("first", first), ("second", second))
    ]
    return Group(*names, Text(), table, Text(), Text(figures.figures_rest_on(first.costs)))


def _both(one: list[str], other: list[str]) -> list[str]:
    return list(dict.fromkeys([*one, *other]))


def _traffic(plan: PlanRecord, memory: str) -> float | None:
    cost = plan.metrics.traffic.get(memory)
    return None if cost is None else cost.value


def _peak(plan: PlanRecord, memory: str) -> float | None:
    use = plan.metrics.memory.get(memory)
    return None if use is None else float(use.peak)


def _seconds_by_kind(plan: PlanRecord) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    for job in plan.jobs:
        spent[job.kind] += job.end - job.start
    return spent
