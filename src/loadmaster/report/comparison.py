"""Two plans side by side: what each reaches, and how far the second is from the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadmaster.core.json_object import json_of
from loadmaster.core.provenance import Costs, costs_of
from loadmaster.core.registry import Status
from loadmaster.core.units import format_bytes, format_count, format_joules, format_seconds
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report import figures
from loadmaster.report.plan_charts import link, memory_map, schedule, time_axis
from loadmaster.report.text import NOTHING, signed
from loadmaster.report.view import (
    BOTH,
    Chart,
    Legend,
    Line,
    Notes,
    Page,
    Section,
    Table,
)

_KINDS = 20
_HINT = (
    "The first plan above the second, over one time axis. Drag to pan, hold Ctrl and scroll to"
    " zoom: all charts move together, with arrows, + and - too, and 0 resets. Click a network to"
    " hide it everywhere."
)


@dataclass(frozen=True)
class ComparedPlan:
    """A plan."""

    title: str
    """Networks and target, in words."""
    status: Status
    """How good the answer is: `optimal` is proven, `feasible` holds but is not proven to be the
    best."""
    seed: int
    """Seed of the search: the same input and seed give the same answer."""


@dataclass(frozen=True)
class ComparedFigure:
    """A figure of both plans."""

    first: float | None
    """The first plan's, in seconds, joules, bytes or a count, as the figure is; null if it has
    none."""
    second: float | None
    """The second plan's, in seconds, joules, bytes or a count, as the figure is; null if it has
    none."""
    change: float | None
    """How much more the second is, as a share of the first; null where that has no meaning."""


@dataclass(frozen=True)
class ComparisonJson:
    """Two plans side by side."""

    VERSION = 1
    plans: Sequence[ComparedPlan]
    """The two plans."""
    figures: Mapping[str, ComparedFigure]
    """By name, figures of the plans: seconds, joules, bytes, counts. `traffic.NAME` and `peak.NAME`
    belong to a memory."""
    kinds: Mapping[str, ComparedFigure]
    """By kind of operator, the seconds that cores spend on it."""
    costs: Costs
    """What the costs rest on."""


@dataclass(frozen=True)
class Row:
    """A figure of both plans; None where one has none. ``key`` is its name in JSON, ``text``
    formats it."""

    key: str
    name: str
    text: Callable[[float], str]
    first: float | None
    second: float | None

    @property
    def change(self) -> float | None:
        """How much more the second is, as a share of the first; None where that has no meaning."""
        return self.second / self.first - 1 if self.first and self.second is not None else None

    def cells(self) -> dict[str, str]:
        """The row as text."""
        first, second = (
            NOTHING if value is None else self.text(value) for value in (self.first, self.second)
        )
        change = NOTHING if self.change is None else signed(self.change)
        return {"": self.name, ">first": first, ">second": second, ">change": change}


_FIGURES: tuple[tuple[str, str, Callable[[PlanRecord], float], Callable[[float], str]], ...] = (
    ("makespan", "Makespan", lambda plan: plan.metrics.makespan.value, format_seconds),
    ("lower_bound", "Lower bound", lambda plan: plan.metrics.makespan.lower_bound, format_seconds),
    (
        "inferences_per_second",
        "Inferences per second",
        lambda plan: plan.metrics.inferences_per_second.value,
        format_count,
    ),
    ("energy", "Energy", lambda plan: plan.metrics.energy.value, format_joules),
    ("missed", "Missed deadlines", lambda plan: plan.missed, format_count),
    ("jobs", "Jobs", lambda plan: len(plan.jobs), "{:,.0f}".format),
)


def rows(first: PlanRecord, second: PlanRecord) -> Iterator[Row]:
    """Iterate over the figures of two plans: times, rates, energy, and bytes and peaks of every
    memory."""
    for key, name, of, text in _FIGURES:
        yield Row(key, name, text, of(first), of(second))
    for memory in _memories(first, second):
        traffic = [plan.metrics.traffic.get(memory) for plan in (first, second)]
        ends = [None if cost is None else cost.value for cost in traffic]
        yield Row(f"traffic.{memory}", f"Traffic of {memory}", format_bytes, *ends)
        uses = [plan.metrics.memory.get(memory) for plan in (first, second)]
        peaks = [None if use is None else use.peak for use in uses]
        yield Row(f"peak.{memory}", f"Peak of {memory}", format_bytes, *peaks)


def _memories(*plans: PlanRecord) -> list[str]:
    return list(dict.fromkeys(m.name for plan in plans for m in plan.target.memories))


def kinds(first: PlanRecord, second: PlanRecord) -> list[Row]:
    """Sum the seconds of cores by kind of operator, the largest differences first."""
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for which, plan in enumerate((first, second)):
        for job in plan.jobs:
            spent[job.kind][which] += job.end - job.start
    ranked = sorted(spent.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))
    return [Row(kind, kind, format_seconds, *both) for kind, both in ranked]


def comparison_json(first: PlanRecord, second: PlanRecord) -> dict[str, Any]:
    """Return every figure of both plans and its change as `ComparisonJson`."""
    return json_of(
        first,
        ComparisonJson,
        plans=[json_of(plan, ComparedPlan, title=figures.title(plan)) for plan in (first, second)],
        figures={row.key: row for row in rows(first, second)},
        kinds={row.key: row for row in kinds(first, second)},
        costs=costs_of(first.costs),
    )


def comparison_page(first: PlanRecord, second: PlanRecord) -> Page:
    """Make the page of two plans: their figures side by side, and their schedules, links and
    memories over one time axis."""
    plans = first, second
    axis, spent = time_axis(*plans), "Time of cores by kind of operator"
    compared = list(rows(*plans))
    about = [
        f"{which}: {figures.title(plan)}; {figures.verdict(plan)}"
        for which, plan in zip(("First", "Second"), plans, strict=True)
    ]
    charts = [_titled(plan, schedule(plan, axis)) for plan in plans]
    costs = Line(figures.figures_rest_on(first.costs), "strong")
    sections = [
        Section("", [Notes(about)], BOTH),
        Section("Figures", [Table([row.cells() for row in compared]), costs], BOTH),
        Section("Schedules", [Line(_HINT, "hint"), Legend(), *charts]),
    ]
    for name in _memories(*plans):
        having = [(plan, m) for plan in plans for m in plan.target.memories if m.name == name]
        links = [_titled(plan, link(plan, memory)) for plan, memory in having]
        maps = [_titled(plan, memory_map(plan, memory, axis)) for plan, memory in having]
        sections.append(Section(f"Memory {name}", [*links, *maps]))
    sections.append(Section(spent, [Table([row.cells() for row in kinds(*plans)[:_KINDS]])]))
    return Page("Two plans", " and ".join(map(figures.title, plans)), lambda: sections, axis)


def _titled(plan: PlanRecord, chart: Chart) -> Chart:
    """Add the plan to the title of a chart."""
    return replace(chart, title=f"{figures.title(plan)}, {plan.status}: {chart.title}")
