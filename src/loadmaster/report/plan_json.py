"""The records that ``loadmaster plan --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loadmaster.core.errors import Violation
from loadmaster.core.json_object import json_of
from loadmaster.core.provenance import CostBasis, costs_of
from loadmaster.core.registry import Status
from loadmaster.planning.plan_records import Cost, MemoryUse, PlanRecord, Rate
from loadmaster.planning.what_if import Change
from loadmaster.report.core_time import CoreTime, core_time
from loadmaster.report.cuts import CutJson, cuts_of
from loadmaster.workloads.job import MiniBatch


@dataclass(frozen=True)
class ObjectiveJson:
    """Objective of the plan, its value and its bound."""

    name: Literal["throughput", "latency", "energy", "edp"]
    """What was minimised: the makespan, the latency of a network, energy, or energy times
    makespan."""
    network: str
    """Network of the objective `latency`; empty for other objectives."""
    value: float
    """The plan's value, in seconds, joules or joule-seconds."""
    lower_bound: float
    """Lower bound for all plans, in the same unit."""
    gap: float | None
    """Relative distance of the value above its bound; null if the bound is 0."""


@dataclass(frozen=True)
class EnergyJson(Cost):
    """Energy of the plan."""

    by: Mapping[str, float]
    """Joules by memory and core."""
    static: float
    """Joules of static power, which are not in `by`."""


@dataclass(frozen=True)
class PlanLimits:
    """What the plan's cores wait for, and the effect of changes of the machine."""

    core_time: CoreTime
    """Shares of the time of all cores, which add up to 1."""
    changes: Sequence[Change]
    """With `--what-if`: quick plans for the unchanged machine and for changes of it; else empty."""


@dataclass(frozen=True)
class PlanJson:
    """A plan of networks on a target, by its figures. The plan itself is plan.json, which `--out`
    writes."""

    VERSION = 2
    status: Status
    """How good the answer is: `optimal` is proven, `feasible` holds but is not proven to be the
    best."""
    makespan: Cost
    """Seconds from the start to the end of the plan."""
    objective: ObjectiveJson
    """What the plan was made for, and what it reached."""
    energy: EnergyJson
    """Joules that the plan takes."""
    latency: Mapping[str, Cost]
    """By network, the most seconds from release to end of its mini-batches."""
    mini_batches: Sequence[MiniBatch]
    """Every mini-batch."""
    missed: int
    """Number of mini-batches that end after their deadlines."""
    lateness: float
    """Seconds by which mini-batches end after their deadlines, in sum."""
    throughput: Rate
    """Operations per second; a multiply-accumulate is two."""
    inferences_per_second: Rate
    """Samples per second, of all networks together."""
    traffic: Mapping[str, Cost]
    """By memory, the bytes that are read and written."""
    memories: Mapping[str, MemoryUse]
    """By memory, its peak, bound and capacity."""
    utilisation: Mapping[str, float]
    """By core, arithmetic time over makespan."""
    limits: PlanLimits
    """What the plan waits for, and what changes of the machine would bring."""
    jobs: int
    """Number of jobs in the plan."""
    cuts: Sequence[CutJson]
    """Operators that are cut into pieces."""
    seconds: float
    """Seconds of wall-clock time that the command's work took."""
    cpu_seconds: float
    """Seconds of processor time that the command's work took, of all threads."""
    seed: int
    """Seed of the search: the same input and seed give the same answer."""
    costs: CostBasis
    """What the costs rest on."""
    violations: Sequence[Violation]
    """Violations found by the independent verifier; empty if the plan or packing is valid."""
    notes: Sequence[str]
    """Remarks in words; the wording is not stable."""


def plan_json(plan: PlanRecord, changes: Sequence[Change], **more: object) -> dict[str, Any]:
    """Return the figures of a plan as `PlanJson`. ``more`` are the fields that the plan does not
    have: violations, and the seconds of planning."""
    figures = plan.metrics
    energy, by = figures.energy, figures.energy_by
    static = energy.value - sum(by.values()) if plan.target.static_power else 0.0
    return json_of(
        plan,
        PlanJson,
        **vars(figures)
        | {
            "energy": EnergyJson(energy.value, energy.lower_bound, by, static),
            "memories": figures.memory,
            "utilisation": {name: rate.value for name, rate in figures.utilisation.items()},
            "limits": PlanLimits(core_time(plan), changes),
            "jobs": len(plan.jobs),
            "cuts": cuts_of(plan).to_json(),
            "costs": costs_of(plan.costs),
        },
        **more,
    )
