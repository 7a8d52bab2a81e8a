"""Checks that a plan's lower bounds are no higher than those that are proven for its networks on
its machine."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.core.units import (
    FEMTOJOULES,
    PICOSECONDS,
    format_bytes,
    format_joules,
    format_seconds,
    seconds_of,
)
from loadmaster.planning.decisions import Bounds
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.planning.verify.facts import quoted

_ROUNDING = 1e-12


def bounds(plan: PlanRecord, proven: Bounds) -> Iterator[str]:
    """No lower bound, of makespan, latency, energy, objective or traffic, is higher than what is
    proven."""
    metrics, least = plan.metrics, seconds_of(proven.makespan.picoseconds)
    if metrics.makespan.lower_bound > least * (1 + _ROUNDING):
        yield (
            f"the makespan is said to be at least {format_seconds(metrics.makespan.lower_bound)},"
            f" proven are {format_seconds(least)}"
        )
    for name, cost in metrics.latency.items():
        due = seconds_of(proven.latency[name])
        if cost.lower_bound > due * (1 + _ROUNDING):
            says = f"at least {format_seconds(cost.lower_bound)}, proven are {format_seconds(due)}"
            yield f"the latency of {quoted(name)} is said to be {says}"
    if metrics.energy.lower_bound > proven.energy / FEMTOJOULES * (1 + _ROUNDING):
        says = (
            f"at least {format_joules(metrics.energy.lower_bound)}, proven are"
            f" {format_joules(proven.energy / FEMTOJOULES)}"
        )
        yield f"the energy is said to be {says}"
    unit = {"energy": FEMTOJOULES, "edp": FEMTOJOULES * PICOSECONDS}.get(
        plan.objective.name, PICOSECONDS
    )
    reached = proven.objective(plan.objective.name, plan.objective.network or None) / unit
    if plan.objective.lower_bound > reached * (1 + _ROUNDING):
        yield (
            f"the objective is said to be at least {plan.objective.lower_bound:.9g}, proven are"
            f" {reached:.9g}"
        )
    for name, cost in metrics.traffic.items():
        moved = proven.makespan.main_bytes if name == plan.target.main.name else 0
        if cost.lower_bound > moved:
            yield (
                f"the traffic of {name} is said to be at least {format_bytes(cost.lower_bound)},"
                f" proven are {format_bytes(moved)}"
            )
