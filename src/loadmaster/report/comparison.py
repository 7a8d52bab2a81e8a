"""The view of two plans side by side: their figures, and the change from the first to the
second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadmaster.core.json_object import json_of
from loadmaster.core.provenance import CostBasis, costs_of, merged
from loadmaster.core.registry import Status
from loadmaster.core.units import format_bytes, format_count, format_joules, format_seconds
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report import figures
from loadmaster.report.plan_charts import link, memory_map, schedule, time_axis
from loadmaster.report.text import if_known, signed
from loadmaster.report.view import BOTH, Chart, Facts, Legend, Line, Notes, Page, Section, Table

_KINDS = 20
_HINT = (
    "The first plan above the second, over one time axis. Drag to pan, hold Ctrl and scroll to"
    " zoom: all charts move together, with arrows, + and - too, and 0 resets. Click a network to"
    " hide it everywhere."
)


@dataclass(frozen=True)
class ComparedPlan:
    """One of two compared plans."""

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
    """The first plan's value in seconds, joules, bytes or a count; null if it has none."""
    second: float | None
    """The second plan's value in the same unit; null if it has none."""
    change: float | None
    """Relative change from the first to the second; null if undefined."""


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
    costs: CostBasis
    """What the costs rest on."""


@dataclass(frozen=True)
class ComparisonRow:
    """A figure of both plans, None for a plan without it. ``key`` is the name in JSON, ``text``
    formats a value."""

    key: str
    name: str
    text: Callable[[float], str]
    first: float | None
    second: float | None

    @property
    def change(self) -> float | None:
        """Relative change from the first to the second; None if undefined."""
        return self.second / self.first - 1 if self.first and self.second is not None else None

    def cells(self) -> Facts:
        """Return the cells of the row as text."""
        return {
            "": self.name,
            ">first": if_known(self.first, self.text),
            ">second": if_known(self.second, self.text),
            ">change": if_known(self.change, signed),
        }


_Value = tuple[str, Callable[[float], str], float | None]
"""Name, formatting function and value of a figure."""


def rows(first: PlanRecord, second: PlanRecord) -> Iterator[ComparisonRow]:
    """Yield the figures of two plans: times, rates, energy, and traffic and peak of memories."""
    both = _values(first), _values(second)
    for key, (name, text, _) in (both[0] | both[1]).items():
        yield ComparisonRow(
            key, name, text, *(values[key][2] if key in values else None for values in both)
        )


def _values(plan: PlanRecord) -> dict[str, _Value]:
    """Return the compared figures of a plan by key, each with its title, its format and its
    value."""
    metrics = plan.metrics
    makespan, rate = metrics.makespan, metrics.inferences_per_second
    found: dict[str, _Value] = {
        "makespan": ("Makespan", format_seconds, makespan.value),
        "lower_bound": ("Lower bound", format_seconds, makespan.lower_bound),
        "inferences_per_second": ("Inferences per second", format_count, rate.value),
        "energy": ("Energy", format_joules, metrics.energy.value),
        "missed": ("Missed deadlines", format_count, plan.missed),
        "jobs": ("Jobs", "{:,.0f}".format, len(plan.jobs)),
    }
    for name in (memory.name for memory in plan.target.memories):
        cost, use = metrics.traffic.get(name), metrics.memory.get(name)
        found[f"traffic.{name}"] = f"Traffic of {name}", format_bytes, getattr(cost, "value", None)
        found[f"peak.{name}"] = f"Peak of {name}", format_bytes, getattr(use, "peak", None)
    return found


def kinds(first: PlanRecord, second: PlanRecord) -> list[ComparisonRow]:
    """Return the cores' seconds by kind of operator of two plans, largest differences first."""
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for which, plan in enumerate((first, second)):
        for job in plan.jobs:
            spent[job.kind][which] += job.end - job.start
    ranked = sorted(spent.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))
    return [ComparisonRow(kind, kind, format_seconds, *both) for kind, both in ranked]


def comparison_json(first: PlanRecord, second: PlanRecord) -> dict[str, Any]:
    """Return every figure of both plans and its change as `ComparisonJson`."""
    return json_of(
        first,
        ComparisonJson,
        plans=[json_of(plan, ComparedPlan, title=figures.title(plan)) for plan in (first, second)],
        figures={row.key: row for row in rows(first, second)},
        kinds={row.key: row for row in kinds(first, second)},
        costs=costs_of(merged((*first.costs, *second.costs))),
    )


def comparison_page(first: PlanRecord, second: PlanRecord) -> Page:
    """Make the page of two plans: their figures side by side, and their schedules, links and
    memories over one time axis."""
    plans = first, second
    axis, spent = time_axis(*plans), "Time of cores by kind of operator"
    about = [
        f"{which}: {figures.title(plan)}; {figures.verdict(plan)}"
        for which, plan in zip(("First", "Second"), plans, strict=True)
    ]
    charts = [_with_plan_in_title(plan, schedule(plan, axis)) for plan in plans]
    costs = Line(figures.figures_rest_on(merged((*first.costs, *second.costs))), "strong")
    sections = [
        Section("", [Notes(about)], BOTH),
        Section("Figures", [Table([row.cells() for row in rows(*plans)]), costs], BOTH),
        Section("Schedules", [Legend(), *charts], hint=_HINT),
    ]
    for name in dict.fromkeys(m.name for plan in plans for m in plan.target.memories):
        having = [(plan, m) for plan in plans for m in plan.target.memories if m.name == name]
        drawn = [_with_plan_in_title(plan, link(plan, memory)) for plan, memory in having]
        drawn += [
            _with_plan_in_title(plan, memory_map(plan, memory, axis)) for plan, memory in having
        ]
        sections.append(Section(f"Memory {name}", drawn))
    sections.append(Section(spent, [Table([row.cells() for row in kinds(*plans)[:_KINDS]])]))
    return Page("Two plans", " and ".join(map(figures.title, plans)), lambda: sections, axis)


def _with_plan_in_title(plan: PlanRecord, chart: Chart) -> Chart:
    """Add the plan to the title of a chart."""
    return replace(chart, title=f"{figures.title(plan)}, {plan.status}: {chart.title}")
