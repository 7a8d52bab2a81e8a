"""One point of a sweep: the figures of its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loadmaster.core.errors import CapacityError, TargetError, Violation
from loadmaster.core.json_object import json_of
from loadmaster.cost.analytical.energy import area
from loadmaster.planning.plan import Plan
from loadmaster.planning.plan_records import Cost
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph


@dataclass(frozen=True)
class PointFigures:
    """The figures of a point that are printed as they are."""

    at: Mapping[str, float | str]
    """By axis, the value of this point; numbers in units without prefixes."""
    scratchpad: int
    """Size of the scratchpad in bytes."""
    bandwidth: float
    """Bandwidth of main memory in bytes per second."""
    area: float
    """Area in square millimetres, of arithmetic and memory cells of cores and fast memory,
    estimated from published figures of 45 nm silicon."""
    status: str
    """`optimal`, `feasible`, or `no plan` with a reason."""
    makespan: float | None = None
    """Seconds until the last job ends."""
    lower_bound: float | None = None
    """Lower bound of the makespan in seconds, for all plans."""
    throughput: float | None = None
    """Operations per second; a multiply-accumulate is two."""
    inferences_per_second: float | None = None
    """Inferences per second, of all networks together."""
    traffic_bytes: int | None = None
    """Bytes read from and written to main memory."""
    peak: int | None = None
    """Highest address in use in the scratchpad, in bytes."""
    gap: float | None = None
    """Relative distance of the objective from its bound."""
    missed: int = 0
    """Number of mini-batches that end after their deadlines."""
    frames: int = 1
    """Samples of the network that has the fewest: its batch times its mini-batches."""
    violations: Sequence[Violation] = ()
    """Violations found by the independent verifier; empty if the plan is valid."""
    reason: str = ""
    """Why there is no plan; empty if there is one."""


@dataclass(frozen=True)
class PointJson(PointFigures):
    """A point with the figures of its plan, null without a plan."""

    status: Literal["optimal", "feasible", "no plan"]
    energy: Cost | None = None
    """Joules that the plan takes; null without a plan."""
    frames_per_second: float | None = None
    """Samples per second of the network that has the fewest."""


@dataclass(frozen=True)
class DesignPoint(PointFigures):
    """A point of a sweep with the figures of its plan.

    ``at`` has the value of every axis, numbers in units without prefixes. ``scratchpad`` in bytes,
    ``bandwidth`` of main memory in bytes/s, ``area`` in square millimetres
    (:func:`loadmaster.area`), times in seconds, ``throughput`` in operations/s, energies in joules.
    ``status`` is the plan's, or ``no plan`` for the given ``reason``; then figures are None.
    ``gap`` is the relative distance of the objective from its bound, ``missed`` the number of
    mini-batches that end after their deadline, ``frames`` the samples of the network that has the
    fewest, and ``violations`` the findings of the independent verifier.
    """

    energy: float | None = None
    energy_bound: float | None = None

    @property
    def planned(self) -> bool:
        """Whether there is a plan for this machine."""
        return self.makespan is not None

    @property
    def frames_per_second(self) -> float | None:
        """Samples per second of the network that has the fewest."""
        return self.frames / self.makespan if self.makespan else None

    def as_json(self) -> dict[str, Any]:
        """Return the point as `PointJson`."""
        cost = {"value": self.energy, "lower_bound": self.energy_bound}
        return json_of(self, PointJson, energy=cost if self.planned else None)


def frames_of(graphs: Sequence[Graph], mini_batches: int) -> int:
    """Samples of the network that has the fewest: its batch times the mini-batches."""
    return min(graph.batch for graph in graphs) * mini_batches


@dataclass(frozen=True)
class PointInput:
    """The input of a point: networks, machine (named by ``at``, its values of the axes) and
    ``options``, further arguments of :func:`loadmaster.plan`."""

    graphs: tuple[Graph, ...]
    target: Target
    at: Mapping[str, float | str]
    options: Mapping[str, Any]


def plan_point(setting: PointInput) -> DesignPoint:
    """Plan for one machine, verify the plan, and return its figures."""
    return point_and_plan(setting)[0]


def point_and_plan(setting: PointInput) -> tuple[DesignPoint, Plan | None]:
    """As :func:`plan_point`, with the plan, if there is one."""
    from loadmaster.planning.planner import plan
    from loadmaster.planning.verify.plan import verify

    target, options = setting.target, setting.options
    bandwidth = min(target.main.read_bandwidth, target.main.write_bandwidth)
    machine = (setting.at, target.room, bandwidth, area(target))
    try:
        result = plan(setting.graphs, target, **options)
    except (CapacityError, TargetError) as error:
        return DesignPoint(*machine, "no plan", reason=str(error)), None
    metrics = result.metrics
    point = DesignPoint(
        *machine,
        result.status,
        makespan=metrics.makespan.value,
        lower_bound=metrics.makespan.lower_bound,
        throughput=metrics.throughput.value,
        inferences_per_second=metrics.inferences_per_second.value,
        traffic_bytes=int(metrics.traffic[target.main.name].value),
        peak=0 if target.fast is None else metrics.memory[target.fast.name].peak,
        energy=metrics.energy.value,
        energy_bound=metrics.energy.lower_bound,
        gap=result.objective.gap,
        missed=result.missed,
        frames=frames_of(setting.graphs, options.get("mini_batches", 1)),
        violations=verify(result),
    )
    return point, result
