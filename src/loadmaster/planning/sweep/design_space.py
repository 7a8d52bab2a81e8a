"""Machines that differ in the size of their scratchpad and the bandwidth of their main memory, and what plans reach on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadmaster.core.errors import TargetError
from loadmaster.core.provenance import Provenance, costs_json
from loadmaster.core.units import parse_bandwidth, parse_bytes
from loadmaster.targets.hardware import Target

_MOST_POINTS = 10_000
"""Machines of one sweep, at most."""


@dataclass(frozen=True, slots=True)
class DesignPoint:
    """What the plan for one machine reaches.

    ``scratchpad`` in bytes, ``bandwidth`` of main memory in bytes/s, times in seconds, ``throughput`` in operations/s, energies in joules.
    ``status`` is the plan's, or ``no plan``, for the ``reason`` given: then figures are None. ``gap`` is how far the objective is above
    its bound, as a share, and ``missed`` counts mini-batches that end after their deadline. ``violations`` counts what an independent
    check found wrong with the plan.
    """

    scratchpad: int
    bandwidth: float
    status: str
    makespan: float | None = None
    lower_bound: float | None = None
    throughput: float | None = None
    inferences_per_second: float | None = None
    traffic_bytes: int | None = None
    peak: int | None = None
    energy: float | None = None
    energy_bound: float | None = None
    gap: float | None = None
    missed: int = 0
    violations: int = 0
    reason: str = ""

    @property
    def planned(self) -> bool:
        """Whether there is a plan for this machine."""
        return self.throughput is not None


@dataclass(frozen=True)
class Sweep:
    """Points in order of bandwidth, then scratchpad; those not ``planned`` yet when the sweep was stopped are missing.

    ``costs`` say what the costs of jobs come from.
    """

    networks: tuple[str, ...]
    target: str
    scratchpads: tuple[int, ...]
    bandwidths: tuple[float, ...]
    points: tuple[DesignPoint, ...]
    reused: int = 0
    precisions: tuple[str, ...] = ()
    costs: tuple[Provenance, ...] = ()

    @property
    def missing(self) -> int:
        """Points without an answer."""
        return len(self.scratchpads) * len(self.bandwidths) - len(self.points)

    def front(self, bandwidth: float) -> tuple[DesignPoint, ...]:
        """Pareto front at one bandwidth: each point has more throughput than all with at most as much scratchpad."""
        found: list[DesignPoint] = []
        for point in sorted((p for p in self.points if p.bandwidth == bandwidth and p.planned), key=lambda p: p.scratchpad):
            if not found or _throughput(point) > _throughput(found[-1]):
                found.append(point)
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain values; ``pareto`` says whether a point is on the front of its bandwidth."""
        fronts = {bandwidth: self.front(bandwidth) for bandwidth in self.bandwidths}
        return {
            "networks": list(self.networks),
            "precisions": list(self.precisions),
            "target": self.target,
            "scratchpads": list(self.scratchpads),
            "bandwidths": list(self.bandwidths),
            "points": [asdict(point) | {"pareto": point in fronts[point.bandwidth]} for point in self.points],
            "missing": self.missing,
            "reused": self.reused,
            "costs": costs_json(self.costs),
        }


def _throughput(point: DesignPoint) -> float:
    return point.throughput or 0.0


@dataclass(frozen=True)
class Axes:
    """Scratchpad sizes in bytes and bandwidths in bytes/s, each ascending; empty: as the target has it."""

    scratchpads: tuple[int, ...] = ()
    bandwidths: tuple[float, ...] = ()


def parse_axes(texts: Sequence[str]) -> Axes:
    """Read ``scratchpad=1MiB:32MiB`` and ``bandwidth=4GB/s,10GB/s``: values, and ranges that double from the low end to the high one.

    Raises
    ------
    TargetError
        If one does not read so, or an axis is given twice.
    """
    found: dict[str, tuple[float, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip()
        if name not in ("scratchpad", "bandwidth") or not values.strip():
            raise TargetError(
                f"--sweep {text!r}: write scratchpad=1MiB:32MiB or bandwidth=4GB/s:64GB/s, or values with commas between them"
            )
        if name in found:
            raise TargetError(f"--sweep {text!r}: {name} is swept already: put all its values into one --sweep, with commas between them")
        found[name] = _values(text, values, parse_bytes if name == "scratchpad" else parse_bandwidth)
    axes = Axes(tuple(map(int, found.get("scratchpad", ()))), found.get("bandwidth", ()))
    points = max(len(axes.scratchpads), 1) * max(len(axes.bandwidths), 1)
    if points > _MOST_POINTS:
        raise TargetError(f"--sweep: {points} points are more than the {_MOST_POINTS} of one sweep: give fewer values")
    return axes


def _values(text: str, values: str, parse: Callable[[str], float]) -> tuple[float, ...]:
    found: set[float] = set()
    for part in values.split(","):
        low, colon, high = part.partition(":")
        found.update(_doubling(text, parse(low), parse(high)) if colon else [parse(part)])
    return tuple(sorted(found))


def _doubling(text: str, low: float, high: float) -> list[float]:
    """``low``, twice that, and so on, and ``high``."""
    if not 0 < low <= high:
        raise TargetError(f"--sweep {text!r}: a range goes from a low end above zero to a high end")
    values = [high]
    while low < high:
        values.append(low)
        low *= 2
    return values


def machine(target: Target, scratchpad: int, bandwidth: float | None) -> Target:
    """The target with another scratchpad and, if given, another bandwidth of main memory, for reading and for writing."""
    main = target.main if bandwidth is None else replace(target.main, read_bandwidth=bandwidth, write_bandwidth=bandwidth)
    fast = None if target.fast is None else replace(target.fast, capacity=scratchpad)
    return replace(target, main=main, fast=fast)
