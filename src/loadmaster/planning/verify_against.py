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
from loadmaster.cost.analytical.job_costs import table_as_planned
from loadmaster.cost.base import JobTable
from loadmaster.planning.against.model import models_of
from loadmaster.planning.against.networks import machine, networks, operators, tensors
from loadmaster.planning.against.work import WorkCheck
from loadmaster.planning.decisions import Bounds
from loadmaster.planning.goal import goal_of
from loadmaster.planning.plan_records import Cost, Objective, PlannedJob, PlanRecord
from loadmaster.planning.proven import proven_bounds
from loadmaster.planning.verify.facts import ps, quoted
from loadmaster.planning.verify.plan import broken, verify
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload


class CostCheck:
    """A plan's jobs beside what they cost; rows of the table are these jobs. Linear in operands."""

    def __init__(
        self, plan: PlanRecord, workload: Workload, jobs: Sequence[PlannedJob], table: JobTable
    ) -> None:
        self._plan, self._table = plan, table
        numbers = {core.name: number for number, core in enumerate(plan.target.cores)}
        self._jobs = [(number, job, numbers[job.core]) for number, job in enumerate(jobs)]
        self._moved = Counter[tuple[int, str, bool]]()
        self._tiles = Counter[tuple[int, str]]()
        operands = (table.operand_job, table.operand_tensor, table.operand_write)
        columns = (column.tolist() for column in operands)
        for row, (number, tensor, write) in enumerate(zip(*columns, strict=True)):
            name = workload.tensors[tensor].name
            core = self._jobs[number][2]
            self._moved[number, name, write] += int(table.moved[row, core])
            self._tiles[number, name] += int(table.tile[row, core])

    def compute(self) -> Iterator[str]:
        """Yield jobs whose arithmetic differs from the model's by more than a picosecond."""
        for number, job, core in self._jobs:
            due = int(self._table.compute[number, core] * PICOSECONDS)
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
        """Yield jobs whose energy inside their core differs from the model's by more than a
        femtojoule."""
        for number, job, core in self._jobs:
            due = float(self._table.energy[number, core])
            if not math.isclose(job.energy, due, rel_tol=1e-9, abs_tol=1.5 / FEMTOJOULES):
                yield (
                    f"job {quoted(job.name)} is said to take {format_joules(job.energy)}, on"
                    f" {job.core} it takes {format_joules(due)}"
                )

    def bytes(self) -> Iterator[str]:
        """Yield jobs that move other bytes of a tensor over the core's port than the model."""
        for number, job, _ in self._jobs:
            for verb, operands in (("read", job.reads), ("write", job.writes)):
                for operand in operands:
                    due = self._moved[number, operand.tensor, verb == "write"]
                    if operand.bytes != due:
                        yield (
                            f"job {quoted(job.name)} {verb}s {operand.bytes} bytes of"
                            f" {quoted(operand.tensor)}, on {job.core} it must {verb} {due}"
                        )

    def tiles(self) -> Iterator[str]:
        """Yield jobs whose private buffer does not hold the tiles that go with their bytes."""
        stated = {(a.memory, a.tensor, ps(a.start), a.bytes) for a in self._plan.allocations}
        for (number, name), size in self._tiles.items():
            _, job, core = self._jobs[number]
            tile = (job.core, name, ps(job.start), size)
            if self._plan.target.cores[core].buffer and tile not in stated:
                yield (
                    f"job {quoted(job.name)}: the tile of {quoted(name)} in {job.core} takes"
                    f" {size} bytes, the plan says otherwise"
                )


_ROUNDING = 1e-12


def bounds(plan: PlanRecord, proven: Bounds) -> Iterator[str]:
    """Yield lower bounds of makespan, latency, energy, objective or traffic that are higher than
    proven."""
    metrics, goal = plan.metrics, plan.objective
    unit = {"energy": FEMTOJOULES, "edp": FEMTOJOULES * PICOSECONDS}.get(goal.name, PICOSECONDS)
    reached = proven.objective(goal.name, goal.network or None) / unit
    makespan = seconds_of(proven.makespan.picoseconds)
    energy = proven.energy / FEMTOJOULES
    figures: list[tuple[str, Cost | Objective, float, Callable[[float], str]]] = [
        ("the makespan", metrics.makespan, makespan, format_seconds),
        ("the energy", metrics.energy, energy, format_joules),
        ("the objective", goal, reached, "{:.9g}".format),
    ]
    for name, cost in metrics.latency.items():
        due = seconds_of(proven.latency[name])
        figures.append((f"the latency of {quoted(name)}", cost, due, format_seconds))
    for name, cost in metrics.traffic.items():
        moved = proven.makespan.main_bytes if name == plan.target.main.name else 0
        figures.append((f"the traffic of {name}", cost, moved, format_bytes))
    for what, stated, least, shown in figures:
        if stated.lower_bound > least * (1 + _ROUNDING):
            yield (
                f"{what} is said to be at least {shown(stated.lower_bound)}, proven are"
                f" {shown(least)}"
            )


@validate_arguments(PlanError)
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
    return verify(plan) or broken(_stages(plan, graphs, target))


def _stages(
    plan: PlanRecord, graphs: Sequence[Graph], target: Target | None
) -> Iterator[Mapping[str, Iterator[str]]]:
    """Yield the checks of the plan against the networks, by rule and in stages. Each stage relies
    on those before it."""
    models = models_of(graphs)
    work = WorkCheck(plan, models)
    yield {"machine": machine(plan, target or plan.target), "network": networks(plan, models)}
    yield {"operator": operators(plan, models)}
    yield {"tensor": tensors(plan, models), "fusion": work.fusions(), "cut": work.cuts()}
    yield {"box": work.boxes()}
    yield {"work": work.amounts()}
    workload, jobs = work.rebuilt()
    try:
        table = table_as_planned(workload, plan.target, [job.tiling for job in jobs])
    except LoadmasterError as error:
        yield {"cost": iter([str(error)])}
        return
    costs = CostCheck(plan, workload, jobs, table)
    yield {
        "bytes": costs.bytes(),
        "compute": costs.compute(),
        "tile": costs.tiles(),
        "energy": costs.energy(),
    }
    yield {"bound": _bounds(plan, graphs, workload)}


def _bounds(plan: PlanRecord, graphs: Sequence[Graph], workload: Workload) -> Iterator[str]:
    """Yield the plan's bounds that differ from those of the networks or, if these cannot be cut, of
    the jobs."""
    counts = {network.mini_batches for network in plan.networks}
    if len(counts) > 1:
        yield "networks have different numbers of mini-batches, for which no bound can be proven"
        return
    objective, network = plan.objective.name, plan.objective.network or None
    periods = {timing.network: timing.period for timing in plan.timings if timing.period}
    deadlines = {
        timing.network: timing.deadline for timing in plan.timings if timing.deadline is not None
    }
    proven = proven_bounds(
        graphs,
        plan.target,
        counts.pop(),
        lambda jobs: goal_of(jobs, objective, network, deadlines, periods),
        lambda: workload,
    )
    yield from bounds(plan, proven)
