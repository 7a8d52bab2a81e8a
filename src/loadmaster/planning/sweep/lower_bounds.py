"""What no plan of networks on a machine can go below, without making one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.cost.analytical.tiling_front import least_table
from loadmaster.planning.cutting.network_bounds import network_bounds
from loadmaster.planning.decisions import Bounds
from loadmaster.planning.goal import Goal, goal_of
from loadmaster.planning.scheduling.goal_bounds import goal_bounds
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload
from loadmaster.workloads.lowering.instantiate import lower


def lower_bounds(
    graphs: Sequence[Graph],
    target: Target,
    mini_batches: int,
    deadlines: Mapping[str, float],
    periods: Mapping[str, float],
) -> Bounds:
    """The bounds that :func:`loadmaster.plan` states with its plans: under every cut, or of the
    jobs where nothing can be cut."""

    def goal_for(workload: Workload) -> Goal:
        return goal_of(workload, "throughput", None, deadlines, periods)

    rates = energy_rates(target)
    found = network_bounds(graphs, target, mini_batches, goal_for, rates)
    if found is not None:
        return found
    workload = lower(graphs, target, mini_batches=mini_batches)
    return goal_bounds(workload, least_table(workload, target), target, rates, goal_for(workload))
