"""Plans of given jobs, with little search."""

from tests.support.efforts import SEPARATE

from loadmaster.core.progress import NO_DEADLINE, Interrupts, no_progress
from loadmaster.cost.analytical.energy import EnergyModel, energy_rates
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.assemble import assemble
from loadmaster.planning.bounds import goal_bounds
from loadmaster.planning.goal import goal_of
from loadmaster.planning.workload_planner import WorkloadPlanner


def planned(workload, target):
    """A plan of these jobs."""
    table, goal = job_table(workload, target), goal_of(workload, "throughput", None, {}, {})
    energy = EnergyModel(table, energy_rates(target))
    planner = WorkloadPlanner(
        workload, table, target, goal, energy, 0, SEPARATE, NO_DEADLINE, no_progress, Interrupts()
    )
    bounds = goal_bounds(workload, table, target, energy.rates, goal)
    return assemble(
        workload, table, planner.tilings, target, energy.rates, goal, planner.best(), bounds, 0, []
    )
