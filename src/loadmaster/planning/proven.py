"""Lower bounds for all plans of networks on a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.cost.analytical.job_costs import least_table
from loadmaster.planning.bounds import goal_bounds
from loadmaster.planning.cutting.network_bounds import network_bounds
from loadmaster.planning.decisions import Bounds
from loadmaster.planning.goal import Goal
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload


def proven_bounds(
    graphs: Sequence[Graph],
    target: Target,
    mini_batches: int,
    goal_for: Callable[[Workload], Goal],
    jobs: Callable[[], Workload],
) -> Bounds:
    """The bounds that :func:`loadmaster.plan` states: over all cuts or, if nothing can be cut, of
    the jobs."""
    rates = energy_rates(target)
    found = network_bounds(graphs, target, mini_batches, goal_for, rates)
    if found is None:
        workload = jobs()
        table = least_table(workload, target)
        found = goal_bounds(workload, table, target, rates, goal_for(workload))
    return found
