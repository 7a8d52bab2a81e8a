"""What no plan of the networks on a machine can go below, however their operators are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.cost.analytical.divisible import divisible_costs
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.energy_model import EnergyRates
from loadmaster.cost.job_table import JobTable
from loadmaster.planning.decisions import Bounds
from loadmaster.planning.goal import Goal
from loadmaster.planning.scheduling.goal_bounds import goal_bounds
from loadmaster.planning.scheduling.makespan_bound import divisible_bound
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Access, Graph
from loadmaster.workloads.job import TensorInstance, Workload
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.grid import divisible
from loadmaster.workloads.lowering.instantiate import Cut, Cuts, lower
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import WHOLE, choose_split


@dataclass(frozen=True)
class _Group:
    """What a fused operator is to the bound: whether it can be cut, and the least share of each storage that its pieces read."""

    divides: bool
    shares: dict[str, float]
    cut: Cut


def network_bounds(
    graphs: Sequence[Graph], target: Target, mini_batches: int, goal_for: Callable[[Workload], Goal], rates: EnergyRates
) -> Bounds | None:
    """Bounds of makespan, energy and latencies under every cut; None where nothing can be cut, so that the bounds of the jobs hold.

    Every operator's work goes to cores in any shares, each core at the rate of the piece that suits it best. Weights, inputs and outputs
    of the networks cross the main link once, and activations are written once and read once by every operator over the link that takes
    less time. There is no critical path, since all cores may share an operator. O(operators x cores).
    """
    groups = [_groups(graph, target) for graph in graphs]
    if not target.main.in_place or not any(group.divides for own in groups for group in own):
        return None
    workload = lower(graphs, target, mini_batches=mini_batches, cuts=[Cuts([group.cut for group in own]) for own in groups])
    order = [group for own in groups for _ in range(mini_batches) for group in own for _ in range(group.cut.tiles)]
    table = _least_table(workload, target, order)
    room = 0 if target.fast is None else target.fast.capacity
    # A piece of what is larger than the fast memory may fit there.
    tensors = tuple(_fitting(tensor, room) for tensor in workload.tensors)
    return goal_bounds(replace(workload, tensors=tensors), table, target, rates, goal_for(workload), divisible_bound)


def _fitting(tensor: TensorInstance, room: int) -> TensorInstance:
    return replace(tensor, bytes=min(tensor.bytes, room)) if tensor.kind == "activation" and not tensor.is_output else tensor


def _groups(graph: Graph, target: Target) -> list[_Group]:
    single = without_updates(graph)
    room = target.fast.capacity if target.fast else None
    found = []
    for group in fuse(single):
        divides = divisible(single, group) is not None
        cut = choose_split(group, room) if room and not divides else WHOLE
        found.append(_Group(divides, _shares(single, group), cut))
    return found


def _shares(graph: Graph, group: FusedOp) -> dict[str, float]:
    shares: dict[str, float] = {}
    for op in group.ops:
        for access in op.reads:
            storage = graph.tensors[access.tensor].storage
            shares[storage] = max(shares.get(storage, 0.0), _least_share(access))
    return shares


def _least_share(access: Access) -> float:
    """Share of an operand that is read by some piece, however small pieces are: strides may step over the rest."""
    share = 1.0
    for window in access.windows:
        if window.axis >= 0:
            share *= min(1.0, (window.high - window.low + window.denominator) / max(1, window.numerator))
    return share


def _least_table(workload: Workload, target: Target, groups: Sequence[_Group]) -> JobTable:
    """What jobs cost at least: whole for those that cannot be cut, else in the pieces that suit each core best."""
    table = job_table(workload, target)
    divides = np.array([group.divides for group in groups], dtype=np.bool_)
    seconds, joules = divisible_costs(workload.jobs, target)
    compute = np.where(divides[:, None], np.minimum(seconds, table.compute), table.compute)
    energy = np.where(divides[:, None], np.minimum(joules, table.energy), table.energy)
    least = [
        int(
            operand.bytes
            * (group.shares.get(workload.tensors[workload.tensor_index[operand.tensor]].storage, 1.0) if group.divides else 1.0)
        )
        for job, group in zip(workload.jobs, groups, strict=True)
        for operand in job.reads
    ]
    moved = table.moved.copy()
    of_divided = divides[table.operand_job]
    once = np.zeros(len(moved), dtype=np.int64)
    once[~table.operand_write] = least
    once[table.operand_write] = [operand.bytes for job in workload.jobs for operand in job.writes]
    moved[of_divided] = np.minimum(moved, once[:, None])[of_divided]
    return replace(table, compute=compute, energy=energy, moved=moved)
