"""What planning makes of a network before it decides anything."""

from typing import NamedTuple

import numpy as np
from tests.support.efforts import SEPARATE

import loadmaster as lm
from loadmaster.core.progress import NO_DEADLINE, Interrupts, no_progress
from loadmaster.cost.analytical.energy import EnergyModel, energy_rates
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.assemble import assemble
from loadmaster.planning.goal import goal_of
from loadmaster.planning.joint.problem import JointProblem
from loadmaster.planning.problem import PlanProblem
from loadmaster.planning.proven import proven_bounds
from loadmaster.planning.workload_planner import WorkloadPlanner
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.grid import WHOLE, Divisible, divisible
from loadmaster.workloads.lowering.pieces import Cuts
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


def cuts_by(graph, cut, *, sums=False):
    """Cuts of all operators, each of which ``cut`` makes of how one can be cut; those that cannot
    be are whole."""
    forms = parts_of(graph, sums=sums).forms
    return Cuts([WHOLE if form is None else cut(form) for form in forms])


def planner_of(workload, target, objective="throughput", effort=SEPARATE):
    """A planner of given jobs."""
    table, goal = job_table(workload, target), goal_of(workload, objective, None, {}, {})
    energy = EnergyModel(table, energy_rates(target))
    tilings = np.zeros(len(workload.jobs), dtype=np.int64)
    problem = PlanProblem(workload, table, target, goal, energy, tilings)
    return WorkloadPlanner(problem, 0, effort, NO_DEADLINE, no_progress, Interrupts())


def bounds_of(graphs, target, mini_batches=1, objective="throughput"):
    """What no plan of the networks is better than."""
    return proven_bounds(
        graphs,
        target,
        mini_batches,
        lambda workload: goal_of(workload, objective, None, {}, {}),
        lambda: lm.lower(graphs, target, mini_batches=mini_batches),
    )


def joint_problem(workload, target):
    """The search over whole plans, for throughput."""
    return JointProblem(planner_of(workload, target).problem)


def check_pieces(graph, cuts, target):
    """Check a plan of a network in given pieces by what verifiers work out by themselves; the
    workload."""
    workload = lm.lower([graph], target, cuts=[cuts])
    plan = planned(workload, target)
    assert lm.verify(plan) == ()
    # The bounds are those of these pieces, and may be higher than those of the network.
    assert {violation.rule for violation in lm.verify_against(plan, [graph], target)} <= {"bound"}
    return workload


def planned(workload, target):
    """A plan of given jobs, with little search."""
    own = planner_of(workload, target)
    return assemble(own.problem, own.best(), own.bounds(), 0, [])
