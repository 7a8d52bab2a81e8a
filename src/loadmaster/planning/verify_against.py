"""Checks a finished plan against the networks and the machine that it is said to be for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import LoadmasterError, PlanError, Violation
from loadmaster.core.units import (
    FEMTOJOULES,
    PICOSECONDS,
    format_bytes,
    format_joules,
    format_seconds,
    seconds_of,
)
from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.cost.analytical.job_costs import least_table, table_as_planned
from loadmaster.cost.base import JobTable
from loadmaster.planning.against.model import models_of
from loadmaster.planning.against.networks import machine, networks, operators, tensors
from loadmaster.planning.against.work import Rebuilt, Work
from loadmaster.planning.bounds import goal_bounds
from loadmaster.planning.cutting.network_bounds import network_bounds
from loadmaster.planning.decisions import Bounds
from loadmaster.planning.goal import Goal, goal_of
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.planning.verify.facts import ps, quoted
from loadmaster.planning.verify.plan import tell, verify
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload


class Costs:
    """A plan's jobs beside what they cost; rows of the table are the rebuilt jobs. Linear in
    operands."""

    def __init__(self, plan: PlanRecord, rebuilt: Rebuilt, table: JobTable) -> None:
        self._plan, self._rebuilt, self._table = plan, rebuilt, table
        self._core = {core.name: number for number, core in enumerate(plan.target.cores)}
        self._moved: list[Counter[tuple[str, bool]]] = [Counter() for _ in rebuilt.planned]
        self._tiles: list[Counter[str]] = [Counter() for _ in rebuilt.planned]
        self._add_operands()

    def compute(self) -> Iterator[str]:
        """Jobs take the arithmetic that the model counts, rounded to a picosecond."""
        for number, job in enumerate(self._rebuilt.planned):
            due = int(self._table.compute[number, self._core[job.core]] * PICOSECONDS)
            lasts = ps(job.end) - ps(job.start)
            if not min(due, lasts) - 1 <= ps(job.compute) <= due + 1 or lasts + 1 < due:
                says = (
                    f"takes {format_seconds(job.compute)} of arithmetic in"
                    f" {format_seconds(lasts / PICOSECONDS)}"
                )
                yield (
                    f"job {quoted(job.name)} {says}, on {job.core} it needs"
                    f" {format_seconds(due / PICOSECONDS)}"
                )

    def energy(self) -> Iterator[str]:
        """Jobs take the energy inside their cores that the model counts, to a femtojoule."""
        for number, job in enumerate(self._rebuilt.planned):
            due = float(self._table.energy[number, self._core[job.core]])
            if not math.isclose(job.energy, due, rel_tol=1e-9, abs_tol=1.5 / FEMTOJOULES):
                yield (
                    f"job {quoted(job.name)} is said to take {format_joules(job.energy)}, on"
                    f" {job.core} it takes {format_joules(due)}"
                )

    def bytes(self) -> Iterator[str]:
        """Jobs read and write as many bytes of each tensor as cross the core's port."""
        for number, job in enumerate(self._rebuilt.planned):
            for verb, operands in (("read", job.reads), ("write", job.writes)):
                for operand in operands:
                    due = self._moved[number][operand.tensor, verb == "write"]
                    if operand.bytes != due:
                        yield (
                            f"job {quoted(job.name)} {verb}s {operand.bytes} bytes of"
                            f" {quoted(operand.tensor)}, on {job.core} it must {verb} {due}"
                        )

    def tiles(self) -> Iterator[str]:
        """Private buffers hold the tiles that go with those bytes."""
        stated = {(a.memory, a.tensor, ps(a.start), a.bytes) for a in self._plan.allocations}
        buffers = {core.name: core.buffer for core in self._plan.target.cores}
        for number, job in enumerate(self._rebuilt.planned):
            for name, size in self._tiles[number].items() if buffers[job.core] else ():
                if (job.core, name, ps(job.start), size) not in stated:
                    yield (
                        f"job {quoted(job.name)}: the tile of {quoted(name)} in {job.core} takes"
                        f" {size} bytes, the plan says otherwise"
                    )

    def _add_operands(self) -> None:
        table, tensors = self._table, self._rebuilt.workload.tensors
        columns = (
            table.operand_job.tolist(),
            table.operand_tensor.tolist(),
            table.operand_write.tolist(),
        )
        for row, (number, tensor, write) in enumerate(zip(*columns, strict=True)):
            core, name = self._core[self._rebuilt.planned[number].core], tensors[tensor].name
            self._moved[number][name, write] += int(table.moved[row, core])
            self._tiles[number][name] += int(table.tile[row, core])


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


Check = Callable[[], Iterator[str]]


@validate_arguments(PlanError, plan=PlanRecord, target=Target)
def verify_against(
    plan: PlanRecord, graphs: Sequence[Graph], target: Target | None = None
) -> tuple[Violation, ...]:
    """Check that a plan holds, and that it is one of these networks on this machine.

    Beyond :func:`loadmaster.verify`: operators, data flow, sizes, precisions, inputs and outputs
    are the model's; operators that run as one job, and pieces, are such as can be; every job has
    the model's work, and takes the arithmetic, bytes, tiles and energy that the cost model counts
    for it on its core; and no lower bound is higher than what is proven for the networks on the
    machine.

    Parameters
    ----------
    plan
        Any plan whose fields have the types that they should have, however wrong their values are.
    graphs
        The networks in the plan's order, read as they were for the plan: same batch, sizes and
        precision.
    target
        The machine. Without one the plan's own is taken for right.

    Returns
    -------
    tuple of Violation
        Empty if all that holds. Else what is wrong, at most 20 of a rule and then how many more.
        Each stage of checks relies on those before it, so that the first stage that finds anything
        is the last. O(operands + pieces x parts), and the bounds.
    """
    if found := verify(plan):
        return found
    models = models_of(graphs)
    work = Work(plan, models)
    stages: Sequence[Mapping[str, Check]] = (
        {
            "machine": lambda: machine(plan, target) if target else iter(()),
            "network": lambda: networks(plan, models),
        },
        {"operator": lambda: operators(plan, models)},
        {"tensor": lambda: tensors(plan, models), "fusion": work.fusions, "cut": work.cuts},
        {"box": work.boxes},
        {"work": work.amounts},
    )
    for stage in stages:
        if found := _broken(stage):
            return found
    rebuilt = work.rebuilt()
    try:
        table = table_as_planned(
            rebuilt.workload, plan.target, [job.tiling for job in rebuilt.planned]
        )
    except LoadmasterError as error:
        return tell("cost", iter([str(error)]))
    costs = Costs(plan, rebuilt, table)
    if found := _broken(
        {
            "bytes": costs.bytes,
            "compute": costs.compute,
            "tile": costs.tiles,
            "energy": costs.energy,
        }
    ):
        return found
    return tell("bound", _bounds(plan, graphs, rebuilt.workload))


def _broken(stage: Mapping[str, Check]) -> tuple[Violation, ...]:
    return tuple(violation for rule, check in stage.items() for violation in tell(rule, check()))


def _bounds(plan: PlanRecord, graphs: Sequence[Graph], workload: Workload) -> Iterator[str]:
    """The plan's bounds against those of the networks, or where these cannot be cut, of the
    jobs."""
    counts = {network.mini_batches for network in plan.networks}
    if len(counts) > 1:
        yield "networks have different numbers of mini-batches, for which no bound can be proven"
        return
    yield from bounds(plan, _proven(plan, graphs, workload, counts.pop()))


def _proven(
    plan: PlanRecord, graphs: Sequence[Graph], workload: Workload, mini_batches: int
) -> Bounds:
    rates = energy_rates(plan.target)
    periods = {timing.network: timing.period for timing in plan.timings if timing.period}
    deadlines = {
        timing.network: timing.deadline for timing in plan.timings if timing.deadline is not None
    }

    def goal_for(workload: Workload) -> Goal:
        return goal_of(
            workload, plan.objective.name, plan.objective.network or None, deadlines, periods
        )

    found = network_bounds(graphs, plan.target, mini_batches, goal_for, rates)
    return found or goal_bounds(
        workload, least_table(workload, plan.target), plan.target, rates, goal_for(workload)
    )
