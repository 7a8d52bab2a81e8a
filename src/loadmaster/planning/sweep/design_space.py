"""The result of a sweep: points, Pareto fronts, and the origin of costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadmaster.core.json_object import json_of
from loadmaster.core.provenance import CostBasis, Provenance, costs_of
from loadmaster.planning.sweep.axes import Axis, plain
from loadmaster.planning.sweep.limits import Limits
from loadmaster.planning.sweep.points import DesignPoint, PointJson
from loadmaster.targets.hardware import Target


@dataclass(frozen=True)
class SweptNetwork:
    """A network of a sweep: multiply-accumulates of a batch, and bytes of its weights."""

    name: str
    precision: str
    batch: int
    macs: int
    weight_bytes: int


@dataclass(frozen=True)
class AxisJson:
    """An axis."""

    name: str
    """Path of a field of the target, or `scratchpad`, `bandwidth`, `networks`, `batch`,
    `mini_batches`."""
    values: Sequence[float | str]
    """Its values; numbers ascend, in units without prefixes."""


@dataclass(frozen=True)
class SweptPoint(PointJson):
    """A point among the others of a sweep."""

    pareto: bool = False
    """Whether no other point has less of area, makespan or energy without more of another, at the
    same values of the axes that change no area."""
    within_limits: bool | None = None
    """Whether the plan keeps all limits; null if nothing is limited."""


@dataclass(frozen=True)
class SweepJson:
    """Plans for every point of a design space, by their figures."""

    VERSION = 3
    networks: Sequence[str]
    """Names of the networks."""
    precisions: Sequence[str]
    """Precision of every network."""
    target: str
    """Name of the target whose fields are varied."""
    axes: Sequence[AxisJson]
    """The axes, in the order of the options."""
    limits: Limits
    """Limits that a plan must keep; null for none."""
    points: Sequence[SweptPoint]
    """Finished points, in the order of the axes, the last changing fastest."""
    smallest: Mapping[str, float | str] | None
    """Values of the point of least area that keeps all limits; null if none does, or nothing is
    limited."""
    missing: int
    """Number of unfinished points, if the sweep was stopped."""
    reused: int
    """Number of points taken from the store of an earlier run."""
    costs: CostBasis
    """What the costs rest on."""


@dataclass(frozen=True)
class Sweep:
    """Finished points in the order of the axes, the last changing fastest.

    ``target`` is the machine that the axes change. ``free`` names axes that do not change the area:
    only points with equal values on these are compared. ``costs`` is the origin of the costs of
    jobs, and ``options`` are the options of every plan.
    """

    networks: tuple[SweptNetwork, ...]
    target: Target
    axes: tuple[Axis, ...]
    points: tuple[DesignPoint, ...]
    free: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    reused: int = 0
    costs: tuple[Provenance, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Number of unfinished points."""
        return math.prod(len(axis.values) for axis in self.axes) - len(self.points)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precision of every network."""
        return tuple(network.precision for network in self.networks)

    def group(self, point: DesignPoint) -> tuple[float | str, ...]:
        """The group of points that a point is compared with: its values on the axes that do not
        change the area."""
        return tuple(point.at[name] for name in self.free)

    def fronts(self) -> dict[tuple[float | str, ...], tuple[DesignPoint, ...]]:
        """Pareto fronts in area, makespan and energy, by :meth:`group`; by area. O(points^2)."""
        groups: dict[tuple[float | str, ...], list[DesignPoint]] = {}
        for point in self.points:
            if point.planned:
                groups.setdefault(self.group(point), []).append(point)
        return {key: front(points) for key, points in groups.items()}

    def smallest(self) -> DesignPoint | None:
        """The point of least area that keeps all limits, of equal ones the fastest; None if none
        does, or nothing is limited."""
        kept = [point for point in self.points if self.limits and self.limits.met_by(point)]
        return min(kept, key=lambda point: (point.area, point.makespan), default=None)

    def as_json(self) -> dict[str, Any]:
        """Everything, as `SweepJson`."""
        fronts = self.fronts()
        points = [
            point.as_json()
            | {
                "pareto": point.planned and point in fronts[self.group(point)],
                "within_limits": self.limits.met_by(point) if self.limits else None,
            }
            for point in self.points
        ]
        best = self.smallest()
        return json_of(
            self,
            SweepJson,
            networks=[network.name for network in self.networks],
            target=self.target.name,
            axes=[AxisJson(axis.name, list(map(plain, axis.values))) for axis in self.axes],
            points=points,
            smallest=best and best.at,
            costs=costs_of(self.costs),
        )


def front(points: Sequence[DesignPoint]) -> tuple[DesignPoint, ...]:
    """Points that are not dominated in area, makespan and energy; of equal ones the first.
    O(points^2)."""
    costs = [(point.area, point.makespan or 0.0, point.energy or 0.0) for point in points]
    order = sorted(range(len(points)), key=costs.__getitem__)
    kept: list[int] = []
    for n in order:
        if not any(all(a <= b for a, b in zip(costs[k], costs[n], strict=True)) for k in kept):
            kept.append(n)
    return tuple(points[n] for n in kept)
