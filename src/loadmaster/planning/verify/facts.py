"""Indices for the checks: the plan's records by name, jobs and copies as one list of steps, and
uses of tensors.

Indices that need valid numbers and names are built on first use, by checks of later stages.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

from loadmaster.core.units import PICOSECONDS, format_seconds
from loadmaster.planning.plan_records import (
    Cost,
    PlannedJob,
    PlannedOperand,
    PlannedTensor,
    PlannedTransfer,
    PlanRecord,
)

Group = tuple[str, int, tuple[str, ...]]
"""Network, mini-batch and operators, which identify the pieces of an operator."""
_LONGEST_NAME = 120
"""Most characters of a name that a message quotes."""


class Step(NamedTuple):
    """A job or a copy: what ``after`` lists order. Times in picoseconds."""

    name: str
    label: str
    start: int
    end: int
    after: tuple[str, ...]


class Use(NamedTuple):
    """A use of a tensor in a memory by a step; ``held`` is the allocation that holds it then."""

    step: int
    tensor: str
    memory: str
    written: bool
    held: int | None


@lru_cache(maxsize=2**16)
def ps(seconds: float) -> int:
    """Picoseconds, in which times compare exactly."""
    return round(seconds * PICOSECONDS)


def when(picoseconds: float) -> str:
    """Readable time."""
    return format_seconds(picoseconds / PICOSECONDS)


def quoted(name: str) -> str:
    """A name in quotes and on one line, without its middle if it is very long."""
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 43]}...{name[-40:]}"
    return repr(name)


def span(start: float, end: float) -> str:
    """Readable half-open interval of two times in seconds."""
    return f"[{format_seconds(start)}, {format_seconds(end)})"


def transfer_label(transfer: PlannedTransfer) -> str:
    """Name of a transfer in messages."""
    if transfer.name:
        return f"copy {quoted(transfer.name)}"
    return (
        f"the transfer of {quoted(transfer.tensor)} from {transfer.source} to"
        f" {transfer.destination} for job {quoted(transfer.job)}"
    )


def same(
    what: str, said: float, found: float, shown: Callable[[float], str] = str
) -> Iterator[str]:
    """Yield a message if a stated figure differs from the recomputed one."""
    if said != found:
        yield f"{what} is said to be {shown(said)}, but is {shown(found)}"


def bounded(what: str, stated: Cost, shown: Callable[[float], str]) -> Iterator[str]:
    """Yield a message if a metric is below its stated bound."""
    if stated.lower_bound > stated.value:
        yield f"{what} of {shown(stated.value)} is said to be at least {shown(stated.lower_bound)}"


class Facts:
    """A plan and the indices that the checks share, each built once, in O(n log n)."""

    def __init__(self, plan: PlanRecord) -> None:
        self.plan = plan
        self.memories = {memory.name: memory for memory in plan.target.memories}
        """Shared memories by name."""
        self.cores = {core.name: core for core in plan.target.cores}
        """Cores by name."""
        self.capacities = {name: core.buffer for name, core in self.cores.items()}
        """Bytes of every shared memory and every private buffer."""
        self.capacities |= {name: memory.capacity for name, memory in self.memories.items()}
        self.tensors = {tensor.name: tensor for tensor in plan.tensors}
        """Tensors by name."""
        self.jobs = {job.name: job for job in plan.jobs}
        """Jobs by name."""
        self.operators = {
            (network.name, operator.name): operator
            for network in plan.networks
            for operator in network.operators
        }
        """Operators by network and name."""
        self.operands = [
            (job, operand, written)
            for job in plan.jobs
            for written, side in ((False, job.reads), (True, job.writes))
            for operand in side
        ]
        """Every operand of every job, first those that it reads, and whether it writes it."""
        self.copies = tuple(transfer for transfer in plan.transfers if not transfer.job)
        """Transfers between memories that serve no single job."""
        self.moving: tuple[PlannedJob | PlannedTransfer, ...] = (*plan.jobs, *plan.transfers)
        """All jobs and transfers."""
        self.pieces = defaultdict[Group, list[PlannedJob]](list)
        """Jobs that do the same operators of the same mini-batch."""
        for job in plan.jobs:
            self.pieces[group_of(job)].append(job)
        self.stored = defaultdict[tuple[str, str, int], list[PlannedTensor]](list)
        """Tensors by network, storage and mini-batch, but for partial sums; weights have mini-batch
        -1."""
        for tensor in (each for each in plan.tensors if not each.summed):
            batch = -1 if tensor.kind == "weight" else tensor.mini_batch
            self.stored[tensor.network, tensor.storage, batch].append(tensor)
        self.groups = defaultdict[str, list[int]](list)
        """Allocations of every memory that has any."""
        for i, allocation in enumerate(plan.allocations):
            self.groups[allocation.memory].append(i)

    def parts(self, network: str, storage: str, mini_batch: int) -> list[PlannedTensor]:
        """All tensors that hold a storage for a mini-batch."""
        return self.stored.get((network, storage, mini_batch), []) + self.stored.get(
            (network, storage, -1), []
        )

    def sums(self, operands: tuple[PlannedOperand, ...]) -> dict[str, PlannedTensor]:
        """The tensors among operands that hold partial sums."""
        tensors = (self.tensors[operand.tensor] for operand in operands)
        return {tensor.name: tensor for tensor in tensors if tensor.summed}

    @cached_property
    def makespan(self) -> int:
        """End of the last job or transfer in picoseconds."""
        return max((ps(each.end) for each in self.moving), default=0)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All jobs, in the plan's order, then all copies."""
        return tuple(
            Step(task.name, f"{kind} {quoted(task.name)}", ps(task.start), ps(task.end), task.after)
            for kind, tasks in (("job", self.plan.jobs), ("copy", self.copies))
            for task in tasks
        )

    @cached_property
    def step_of(self) -> dict[str, int]:
        """Index of every step by the name of its job or copy."""
        return {step.name: i for i, step in enumerate(self.steps)}

    @cached_property
    def core_orders(self) -> dict[str, list[int]]:
        """Steps of every core in the order in which it runs them: by start, then end, then place in
        the plan's list."""
        orders = defaultdict(list)
        for i in sorted(range(len(self.plan.jobs)), key=lambda i: self.steps[i][2:4]):
            orders[self.plan.jobs[i].core].append(i)
        return orders

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """For every step, the steps that its ``after`` names and the step before it on its core."""
        before = [[self.step_of[name] for name in step.after] for step in self.steps]
        for order in self.core_orders.values():
            for one, two in pairwise(order):
                before[two].append(one)
        return before

    @cached_property
    def topological(self) -> tuple[list[int], list[int]]:
        """Steps in topological order, and []; or [] and the steps of a cycle."""
        try:
            return list(TopologicalSorter(dict(enumerate(self.predecessors))).static_order()), []
        except CycleError as error:
            return [], error.args[1]

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Lifetime of every allocation in picoseconds."""
        return [(ps(each.start), ps(each.end)) for each in self.plan.allocations]

    @cached_property
    def places(self) -> dict[tuple[str, str], list[tuple[int, int, int]]]:
        """Allocations of every tensor in every memory: start, end and index, in this order."""
        places = defaultdict(list)
        for i, (each, span) in enumerate(zip(self.plan.allocations, self.spans, strict=True)):
            places[each.tensor, each.memory].append((*span, i))
        return {key: sorted(own) for key, own in places.items()}

    def held(self, tensor: str, memory: str, start: int, end: int) -> int | None:
        """The allocation that holds a tensor in a memory over all of [start, end): of those that
        start until then, the last."""
        own = self.places.get((tensor, memory), [])
        at = bisect_right(own, (start, math.inf)) - 1
        return own[at][2] if at >= 0 and own[at][1] >= end else None

    @cached_property
    def uses(self) -> list[Use]:
        """Every use of a tensor in a memory by a job, and then by a copy, which reads at its source
        and writes at its destination."""
        found = [
            (self.step_of[job.name], operand.tensor, operand.memory, written)
            for job, operand, written in self.operands
        ]
        for step, copy in enumerate(self.copies, len(self.plan.jobs)):
            found.append((step, copy.tensor, copy.source, False))
            found.append((step, copy.tensor, copy.destination, True))
        return [
            Use(*use, self.held(*use[1:3], self.steps[use[0]].start, self.steps[use[0]].end))
            for use in found
        ]

    @cached_property
    def deliveries(self) -> dict[int, list[int]]:
        """For every allocation the steps that put the tensor's content there: its producer, or
        copies."""
        found = defaultdict(list)
        for use in self.uses:
            is_copy = use.step >= len(self.plan.jobs)
            puts = is_copy or self.step_of.get(self.tensors[use.tensor].producer) == use.step
            if use.written and use.held is not None and puts:
                found[use.held].append(use.step)
        return found

    @cached_property
    def fetches(self) -> list[tuple[Use, list[int]]]:
        """Reads of allocations that are not initial, with the steps that deliver the content."""
        return [
            (use, self.deliveries.get(use.held, []))
            for use in self.uses
            if not use.written and use.held is not None and use.held not in self.initial
        ]

    @cached_property
    def initial(self) -> set[int]:
        """Allocations that hold their content from the start: those of inputs and weights in main
        memory from time 0."""
        main = self.plan.target.main.name
        return {
            i
            for i, each in enumerate(self.plan.allocations)
            if each.memory == main
            and not self.spans[i][0]
            and not self.tensors[each.tensor].producer
        }


def group_of(job: PlannedJob) -> Group:
    """The key that the pieces of an operator share."""
    return job.network, job.mini_batch, job.operators
