"""Limits that a plan must keep: makespan, energy, frames per second, and deadlines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from numbers import Real

from loadmaster.core.arguments import require_type
from loadmaster.core.errors import PlanError
from loadmaster.core.units import (
    FEMTOJOULES,
    PICOSECONDS,
    format_count,
    format_joules,
    format_seconds,
    seconds_of,
)
from loadmaster.planning.decisions import Bounds
from loadmaster.planning.sweep.points import DesignPoint, frames_of
from loadmaster.workloads.graph import Graph


@dataclass(frozen=True)
class Limits:
    """Upper limits of makespan (seconds) and energy (joules), and a lower limit of frames per
    second of each network; None: no limit.

    A frame is one sample: a plan processes batch x mini-batches frames of a network within its
    makespan. ``deadlines`` are seconds by network, as for :func:`loadmaster.plan`.
    """

    makespan: float | None = None
    """Seconds that a plan may take at most."""
    energy: float | None = None
    """Joules that a plan may take at most."""
    fps: float | None = field(default=None, metadata={"key": "frames_per_second"})
    """Frames per second that every network must reach at least; a frame is a sample of its
    batches."""
    deadlines: Mapping[str, float] = field(default_factory=dict)
    """Seconds after its release in which a mini-batch of a network must end, by network."""

    def __post_init__(self) -> None:
        # None is no deadline either.
        object.__setattr__(self, "deadlines", self.deadlines or {})
        require_type(self.deadlines, Mapping, "deadlines", PlanError)
        for name in ("makespan", "energy", "fps"):
            value = getattr(self, name)
            if value is None:
                continue
            require_type(value, Real, name, PlanError)
            if not 0 < value < inf:
                raise PlanError(f"{name}: a limit is above zero, and this is {value}")

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return any((self.deadlines, self.makespan, self.energy, self.fps))

    def seconds(self, frames: int) -> float | None:
        """The longest allowed makespan for ``frames`` frames of each network; None for no
        limit."""
        given = [self.makespan, self.fps and frames / self.fps]
        return min(filter(None, given), default=None)

    def met_by(self, point: DesignPoint) -> bool:
        """Whether a plan was found that is valid and keeps all limits."""
        if point.makespan is None or point.energy is None or point.violations or point.missed:
            return False
        longest = self.seconds(point.frames) or inf
        return point.makespan <= longest and point.energy <= (self.energy or inf)

    def excluded_by(self, bounds: Bounds, graphs: Sequence[Graph], mini_batches: int) -> str:
        """Say why lower bounds (picoseconds, femtojoules) exclude every plan; empty if they do
        not."""
        makespan = seconds_of(bounds.makespan.picoseconds)
        longest = self.seconds(frames_of(graphs, mini_batches))
        for least, most, text in (
            (makespan, longest, format_seconds),
            (bounds.energy / FEMTOJOULES, self.energy, format_joules),
        ):
            if most is not None and least > most:
                return f"every plan takes at least {text(least)}, and {text(most)} are allowed"
        for name, deadline in self.deadlines.items():
            picoseconds = bounds.latency.get(name, 0)
            if picoseconds - 0.5 > deadline * PICOSECONDS:
                return (
                    f"some mini-batch of {name} takes at least"
                    f" {format_seconds(seconds_of(picoseconds))}, and is due after"
                    f" {format_seconds(deadline)}"
                )
        return ""

    def __str__(self) -> str:
        """Return the limits in words."""
        return ", ".join(self._words()) or "no limits"

    def _words(self) -> Iterator[str]:
        """Yield each limit in words."""
        if self.makespan is not None:
            yield f"at most {format_seconds(self.makespan)}"
        if self.fps is not None:
            yield f"at least {format_count(self.fps)} frames per second of each network"
        if self.energy is not None:
            yield f"at most {format_joules(self.energy)}"
        for name, deadline in self.deadlines.items():
            yield f"{name} within {format_seconds(deadline)}"
