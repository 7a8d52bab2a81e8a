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
    Chart,
    Figure,
    Figures,
    Legend,
    Line,
    Notes,
    Page,
    Part,
    Section,
    Table,
)

_COLUMNS = ("", ">first", ">second", ">change")
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
    first: float | None
    second: float | None
    text: Callable[[float], str]

    @property
    def change(self) -> float | None:
        """How much more the second is, as a share of the first; None where that has no meaning."""
        return self.second / self.first - 1 if self.first and self.second is not None else None

    def cells(self) -> tuple[str, str, str, str]:
        """The row as text: name, first, second, change."""
        first, second = (
            NOTHING if value is None else self.text(value) for value in (self.first, self.second)
        )
        return self.name, first, second, NOTHING if self.change is None else signed(self.change)


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
        yield Row(key, name, of(first), of(second), text)
    for memory in _memories(first, second):
        for key, of_memory in (("traffic", _traffic), ("peak", _peak)):
            name = f"{key.capitalize()} of {memory}"
            ends = of_memory(first, memory), of_memory(second, memory)
            yield Row(f"{key}.{memory}", name, *ends, format_bytes)


def _traffic(plan: PlanRecord, memory: str) -> float | None:
    cost = plan.metrics.traffic.get(memory)
    return None if cost is None else cost.value


def _peak(plan: PlanRecord, memory: str) -> float | None:
    use = plan.metrics.memory.get(memory)
    return None if use is None else float(use.peak)


def _memories(*plans: PlanRecord) -> list[str]:
    return list(dict.fromkeys(m.name for plan in plans for m in plan.target.memories))


def kinds(first: PlanRecord, second: PlanRecord) -> list[Row]:
    """Sum the seconds of cores by kind of operator, the largest differences first."""
    one, other = (defaultdict[str, float](float) for _ in range(2))
    for plan, spent in ((first, one), (second, other)):
        for job in plan.jobs:
            spent[job.kind] += job.end - job.start
    ranked = sorted({*one, *other}, key=lambda kind: (-abs(other[kind] - one[kind]), kind))
    return [Row(kind, kind, one[kind], other[kind], format_seconds) for kind in ranked]


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


def comparison_summary(first: PlanRecord, second: PlanRecord) -> list[Part]:
    """Make a table of the figures of both plans."""
    return [_about(first, second), _figures(first, second), _costs(first)]


def _about(first: PlanRecord, second: PlanRecord) -> Notes:
    lines = (("First", first), ("Second", second))
    return Notes(
        [f"{which}: {figures.title(plan)}; {figures.verdict(plan)}" for which, plan in lines]
    )


def _figures(first: PlanRecord, second: PlanRecord) -> Table:
    return Table(_COLUMNS, [row.cells() for row in rows(first, second)])


def _costs(plan: PlanRecord) -> Line:
    return Line(figures.figures_rest_on(plan.costs), "strong")


def comparison_page(first: PlanRecord, second: PlanRecord) -> Page:
    """Make the page of two plans: their figures side by side, and their schedules, links and
    memories over one time axis."""
    plans = first, second
    axis, spent = time_axis(first, second), "Time of cores by kind of operator"
    cards = []
    for row in rows(first, second):
        if row.key in ("makespan", "inferences_per_second", "energy"):
            name, one, other, change = row.cells()
            cards.append(Figure(name, change, distance=f"first {one}, second {other}"))
    hint, legend = Line(_HINT, "hint"), Legend()
    charts = [_titled(plan, schedule(plan, axis)) for plan in plans]
    sections = [
        Section("", [Figures(cards), _about(first, second), _costs(first)]),
        Section("Figures", [_figures(first, second)]),
        Section("Schedules", [hint, legend, *charts]),
    ]
    for name in _memories(first, second):
        having = [(plan, m) for plan in plans for m in plan.target.memories if m.name == name]
        links = [_titled(plan, link(plan, memory)) for plan, memory in having]
        maps = [_titled(plan, memory_map(plan, memory, axis)) for plan, memory in having]
        sections.append(Section(f"Memory {name}", [*links, *maps]))
    by_kind = [row.cells() for row in kinds(first, second)[:_KINDS]]
    sections.append(Section(spent, [Table(_COLUMNS, by_kind)]))
    return Page("Two plans", " and ".join(map(figures.title, plans)), sections, axis)


def _titled(plan: PlanRecord, chart: Chart) -> Chart:
    """Add the plan to the title of a chart."""
    return replace(chart, title=f"{figures.title(plan)}, {plan.status}: {chart.title}")
