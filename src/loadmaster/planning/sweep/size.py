"""Sizing: the least value of one field of a machine with which networks run within limits, and the
values that are proven impossible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import PlanError, TargetError
from loadmaster.core.json_object import json_of
from loadmaster.core.names import unique_names
from loadmaster.core.progress import Interrupts, Progress, deferred_interrupts, no_progress
from loadmaster.core.provenance import CostBasis, Provenance, costs_of
from loadmaster.core.units import Quantity
from loadmaster.planning.goal import goal_of
from loadmaster.planning.plan import Plan
from loadmaster.planning.planner import as_networks
from loadmaster.planning.proven import proven_bounds
from loadmaster.planning.sweep.axes import Axis, machine, plain
from loadmaster.planning.sweep.limits import Limits
from loadmaster.planning.sweep.orders import WarmStarts, order_of
from loadmaster.planning.sweep.points import (
    DesignPoint,
    PointInput,
    PointJson,
    frames_of,
    point_and_plan,
)
from loadmaster.targets.hardware import Target
from loadmaster.targets.load import as_target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.instantiate import lower


class Verdict(StrEnum):
    """The verdict on a value."""

    SUFFICES = "suffices"
    """A plan that keeps all limits has been made and verified."""
    NOT_FOUND = "not found"
    """The plan found does not keep all limits; another one may."""
    IMPOSSIBLE = "impossible"
    """A lower bound proves that no plan keeps all limits."""


@dataclass(frozen=True)
class Trial:
    """A value that was tried, with the verdict and the plan; ``reason`` says why a value is
    impossible or has no plan."""

    value: Quantity
    verdict: Verdict
    reason: str = ""
    point: DesignPoint | None = None


@dataclass(frozen=True)
class TrialJson:
    """A value that was tried, with the verdict and the plan."""

    value: float
    """The value, in the base unit of the field."""
    verdict: Verdict
    """`suffices`: a verified plan keeps all limits; `not found`: the plan found does not;
    `impossible`: a lower bound proves that no plan can."""
    reason: str
    """Why the value is impossible, or has no plan; else empty. The wording is not stable."""
    point: PointJson | None
    """Figures of the plan; null if none was made."""


@dataclass(frozen=True)
class NumberAxis:
    """The varied field and its values."""

    name: str
    """Path of a field of the target, or `scratchpad` or `bandwidth`."""
    values: Sequence[float]
    """The values to choose from, in units without prefixes, from the worst machine to the best if
    `ordered`."""


@dataclass(frozen=True)
class SizingJson:
    """The least value of one field of a machine with which networks run within limits."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    """`optimal`: a value suffices and all before it are proven impossible; `feasible`: a value
    suffices; `infeasible`: all values are proven impossible; `unknown`: none was found that
    suffices."""
    networks: Sequence[str]
    """Names of the networks."""
    precisions: Sequence[str]
    """Precision of every network."""
    target: str
    """Name of the target whose fields are varied."""
    axis: NumberAxis
    """What is varied."""
    ordered: bool
    """Whether machines become no worse along the axis: then a value proven impossible proves all
    values before it impossible, on the grid and off it."""
    limits: Limits
    """Limits that a plan must keep; null for none."""
    least: float | None
    """The first value that suffices, in the base unit of the field; null if none was found."""
    excluded: float | None
    """The last value that is proven impossible, in the base unit of the field; null if none is."""
    open: Sequence[float]
    """Values before the least that are not proven impossible."""
    trials: Sequence[TrialJson]
    """Values that were tried, in the order of the axis."""
    interrupted: bool
    """Whether a time limit or Ctrl-C ended the work early."""
    seed: int
    """Seed of the search: the same input and seed give the same answer."""
    costs: CostBasis
    """What the costs rest on."""


@dataclass(frozen=True)
class SizeJson(SizingJson):
    """The least value of one field of a machine with which networks run within limits."""

    VERSION = 2
    seconds: float
    """Seconds of wall-clock time that the command's work took."""
    cpu_seconds: float
    """Seconds of processor time that the command's work took, of all threads."""


@dataclass(frozen=True)
class Sizing:
    """The result of :func:`size`.

    If ``ordered``, ``values`` go from the worst machine to the best; else they ascend, and no value
    says anything about another. ``trials`` are in the same order. ``plan`` is the plan of the least
    value that suffices, None if none was found.
    """

    networks: tuple[str, ...]
    precisions: tuple[str, ...]
    target: Target
    axis: str
    values: tuple[Quantity, ...]
    ordered: bool
    limits: Limits
    trials: tuple[Trial, ...]
    plan: Plan | None = None
    interrupted: bool = False
    seed: int = 0
    costs: tuple[Provenance, ...] = field(default=())

    @property
    def least(self) -> Trial | None:
        """The first value that suffices."""
        return next((trial for trial in self.trials if trial.verdict is Verdict.SUFFICES), None)

    @property
    def excluded(self) -> Trial | None:
        """The last value that is proven impossible; if ``ordered``, so are all before it."""
        return next(
            (trial for trial in reversed(self.trials) if trial.verdict is Verdict.IMPOSSIBLE), None
        )

    @property
    def open(self) -> tuple[Quantity, ...]:
        """Values before the least that suffices that are not proven impossible: one of them may
        suffice."""
        least, excluded = self.least, self.excluded
        end = self.values.index(least.value) if least else len(self.values)
        proven = {trial.value for trial in self.trials if trial.verdict is Verdict.IMPOSSIBLE}
        if self.ordered and excluded:
            proven |= set(self.values[: self.values.index(excluded.value)])
        return tuple(value for value in self.values[:end] if value not in proven)

    @property
    def status(self) -> str:
        """``optimal`` if all values before the least are proven impossible, ``infeasible`` if all
        are, ``feasible`` or ``unknown``."""
        if self.least:
            return "feasible" if self.open else "optimal"
        return "unknown" if self.open else "infeasible"

    def as_json(self) -> dict[str, Any]:
        """Everything but the plan, as `SizingJson`."""
        least, excluded = self.least, self.excluded
        return json_of(
            self,
            SizingJson,
            target=self.target.name,
            axis=NumberAxis(self.axis, [value.value for value in self.values]),
            least=least and least.value.value,
            excluded=excluded and excluded.value.value,
            open=[value.value for value in self.open],
            trials=[
                json_of(
                    trial,
                    TrialJson,
                    value=trial.value.value,
                    point=trial.point and trial.point.as_json(),
                )
                for trial in self.trials
            ],
            costs=costs_of(self.costs),
        )


@validate_arguments(PlanError)
def size(
    graphs: Any,
    target: Target | str | Path,
    axis: Axis,
    limits: Limits,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Sizing:
    """Find the least value of one field of a machine with which networks run within limits.

    Along an axis where machines become no worse (capacities, bandwidths, clocks), both ends are
    found by bisection: lower bounds exclude values from below, plans prove from above which values
    suffice. A value that a bound excludes also excludes all values before it, on the grid and off
    it. A plan that is no better than that of a worse machine is made once more, from the latter.
    Along other axes every value is tried in order until one suffices. As plans come from a
    heuristic search, values in between may remain undecided. Ctrl-C returns the result so far.

    Parameters
    ----------
    graphs, target
        As for :func:`loadmaster.plan`.
    axis : Axis
        A field of the target and the values to choose from, from :func:`loadmaster.parse_axis`.
    limits : Limits
        Limits that a plan must keep. If energy is limited, it is minimised, with the other limits
        as deadlines; else the makespan is minimised.
    progress : callable, optional
        Called with a description of the stage and the completed share.
    **options
        Arguments of :func:`loadmaster.plan` except ``objective`` and ``deadlines``.

    Raises
    ------
    PlanError
        If nothing is limited, or the axis is not a numeric field of the target.
    """
    if not limits:
        raise PlanError("nothing is limited: give --fps, --makespan, --energy or --deadline")
    if options.keys() & {"deadlines", "objective"}:
        raise PlanError("deadlines and objective follow from the limits of a size: leave them out")
    if not axis.is_machine:
        raise PlanError(
            f"{axis.name}: a size is of a field of the target, such as scratchpad, bandwidth or"
            " cores.ws.rows"
        )
    graphs, target, numbers = as_networks(graphs), as_target(target), axis.numbers
    order = order_of(axis, target, energy=limits.energy is not None)
    values = numbers[::-1] if order < 0 else numbers
    figure = "makespan" if limits.energy is None else "energy"
    with deferred_interrupts() as interrupts:
        search = _SizeSearch(
            graphs,
            target,
            axis.name,
            values,
            limits,
            options,
            progress or no_progress,
            interrupts,
            WarmStarts([order], lambda point: (point.missed, getattr(point, figure))),
        )
        search.bisect() if order else search.scan()
    found = search.plans.get(min(search.plans, default=0))
    trials = tuple(search.trials[n] for n in sorted(search.trials))
    return Sizing(
        tuple(graph.name for graph in graphs),
        tuple(graph.precision for graph in graphs),
        target,
        axis.name,
        values,
        order != 0,
        limits,
        trials,
        found,
        interrupts.requested,
        options.get("seed", 0),
        (target.costs_by("cost model", sum(trial.point is not None for trial in trials)),),
    )


@dataclass
class _SizeSearch:
    """The trials by position of their value; ``most`` is the largest number of plans."""

    graphs: tuple[Graph, ...]
    target: Target
    axis: str
    values: tuple[Quantity, ...]
    limits: Limits
    options: Mapping[str, Any]
    progress: Progress
    interrupts: Interrupts
    warm_starts: WarmStarts
    most: int = 1
    trials: dict[int, Trial] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)

    def bisect(self) -> None:
        """Find the last value that a bound excludes, then the first beyond it that suffices; at
        most 2 log2(values) + 3 trials. Where the middle does not suffice, what is better may."""
        beyond = len(self.values)
        low = self._first(-1, beyond, lambda n: not self._excluded(n))
        if low == beyond or self.interrupts.requested:
            return
        self.most = 1 + (beyond - low - 1).bit_length()
        # Better machines are given the plan of the worst, and it may suffice.
        if not self._suffices(low):
            self._first(low, beyond, self._suffices)

    def scan(self) -> None:
        """Try every value until one suffices."""
        self.most = len(self.values)
        for n in range(self.most):
            if self.interrupts.requested or (not self._excluded(n) and self._suffices(n)):
                return

    def _first(self, low: int, high: int, holds: Callable[[int], bool]) -> int:
        """Bisect for the least position in (low, high] at which ``holds``, taking it to hold at
        ``high``; after Ctrl-C the least found so far."""
        while high - low > 1 and not self.interrupts.requested:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high

    def _excluded(self, n: int) -> bool:
        """Whether a bound shows that no plan of a value keeps the limits."""
        self.progress(f"{self.axis} {self.values[n]}: bounding", 0.0)
        mini_batches, target = self._mini_batches, self._machine(n)
        timings = self.limits.deadlines, self.options.get("periods") or {}
        try:
            bounds = proven_bounds(
                self.graphs,
                target,
                mini_batches,
                lambda jobs: goal_of(jobs, "throughput", None, *timings),
                lambda: lower(self.graphs, target, mini_batches=mini_batches),
            )
        except TargetError:  # The plan's own refusal will say why.
            return False
        reason = self.limits.excluded_by(bounds, self.graphs, mini_batches)
        if reason:
            self.trials[n] = Trial(self.values[n], Verdict.IMPOSSIBLE, reason)
        return bool(reason)

    def _suffices(self, n: int) -> bool:
        """Whether a plan of a value keeps the limits."""
        value = self.values[n]
        tried = sum(trial.verdict is not Verdict.IMPOSSIBLE for trial in self.trials.values())

        def report(stage: str, _: float) -> None:
            """Report the stage of a trial, and the share of trials made."""
            self.progress(f"{self.axis} {value}: {stage}", tried / self.most)

        options = {**self.options, **self._goal(), "progress": report}
        at = {self.axis: plain(value)}
        setting = PointInput(self.graphs, self._machine(n), at, options)
        point, made = point_and_plan(setting)
        met = self.limits.met_by(point)
        points = {str(m): trial.point for m, trial in self.trials.items() if trial.point}
        source = self.warm_starts.of(points | {str(n): point}).get(str(n))
        if source is not None and not met:
            smaller = self._machine(int(source))
            setting = replace(setting, options=options | {"smaller": smaller})
            point, made = point_and_plan(setting)
            met = self.limits.met_by(point)
        verdict = Verdict.SUFFICES if met else Verdict.NOT_FOUND
        self.trials[n] = Trial(value, verdict, point.reason, point)
        if made and met:
            self.plans[n] = made
        return met

    def _goal(self) -> dict[str, Any]:
        """Objective and deadlines of plans: deadlines precede every objective, so energy is
        minimised within the allowed time."""
        deadlines = dict(self.limits.deadlines)
        if self.limits.energy is None:
            return {"deadlines": deadlines}
        longest = self.limits.seconds(frames_of(self.graphs, self._mini_batches))
        if longest is not None and not self.options.get("periods"):
            for name in unique_names(graph.name for graph in self.graphs):
                deadlines[name] = min(longest, deadlines.get(name, longest))
        return {"deadlines": deadlines, "objective": "energy"}

    @property
    def _mini_batches(self) -> int:
        """The number of mini-batches of every network."""
        return int(self.options.get("mini_batches", 1))

    def _machine(self, n: int) -> Target:
        """Return the target with value ``n`` of the axis."""
        return machine(self.target, [(self.axis, self.values[n])])
