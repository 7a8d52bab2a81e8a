"""What planning makes of a network before it decides anything."""

from typing import NamedTuple

from loadmaster.cost.analytical.energy import EnergyModel, energy_rates
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.goal import goal_of
from loadmaster.planning.joint.problem import JointProblem
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.grid import Divisible, divisible
from loadmaster.workloads.lowering.single_assignment import without_updates


class Parts(NamedTuple):
    """A network without updates, its fused operators, and how each can be cut."""

    single: Graph
    fused: list[FusedOp]
    forms: list[Divisible | None]


def parts_of(graph, *, sums=False):
    single = without_updates(graph)
    fused = fuse(single)
    return Parts(single, fused, [divisible(single, group, sums=sums) for group in fused])


def joint_problem(work, machine):
    """The search over whole plans, for throughput."""
    table = job_table(work, machine)
    goal = goal_of(work, "throughput", None, {}, {})
    return JointProblem(work, table, machine, goal, EnergyModel(table, energy_rates(machine)))
