"""Checks a finished plan against the networks and the machine that it is said to be for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from loadmaster.core.arguments import takes
from loadmaster.core.errors import LoadmasterError, PlanError
from loadmaster.core.violation import Violation
from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.cost.analytical.tiling_front import least_table, table_as_planned
from loadmaster.planning.against.bounds import bounds
from loadmaster.planning.against.costs import Costs
from loadmaster.planning.against.model import models_of
from loadmaster.planning.against.networks import machine, networks, operators, tensors
from loadmaster.planning.against.work import Work
from loadmaster.planning.cutting.network_bounds import network_bounds
from loadmaster.planning.decisions import Bounds
from loadmaster.planning.goal import Goal, goal_of
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.planning.scheduling.goal_bounds import goal_bounds
from loadmaster.planning.verify.plan import tell, verify
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload

Check = Callable[[], Iterator[str]]


@takes(PlanError, plan=PlanRecord, target=Target)
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
