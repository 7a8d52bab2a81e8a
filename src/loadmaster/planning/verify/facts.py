"""What the checks look up: the plan's records by name, its jobs and copies as one list of steps,
and who touches what where.

Each is built on first use: those that need sound numbers and names are first used by checks that
come after the checks of these.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import Ints, Mask
from loadmaster.core.units import PICOSECONDS, format_seconds
from loadmaster.planning.plan_records import PlannedJob, PlannedTensor, PlannedTransfer, PlanRecord
from loadmaster.planning.verify.columns import UNKNOWN, Columns, spans_of
from loadmaster.targets.hardware import Memory

NOWHERE = UNKNOWN
_LONGEST_NAME = 120
"""Characters of a name that a message quotes, at most."""


class Step(NamedTuple):
    """A job or a copy: what ``after`` lists order. Times in picoseconds."""

    label: str
    start: int
    end: int
    after: tuple[str, ...]


@dataclass(frozen=True)
class Uses:
    """Every use of a tensor in a memory by a step, step after step; ``held`` is the allocation that
    holds it then, or ``NOWHERE``.

    ``place`` numbers shared memories and then cores.
    """

    step: Ints
    tensor: Ints
    place: Ints
    written: Mask
    held: Ints


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
    """What messages call a transfer."""
    if transfer.name:
        return f"copy {quoted(transfer.name)}"
    return (
        f"the transfer of {quoted(transfer.tensor)} from {transfer.source} to"
        f" {transfer.destination} for job {quoted(transfer.job)}"
    )


@dataclass(frozen=True)
class Facts:
    """A plan and the indices that the checks share. All of them are built once, in O(n log n)."""

    plan: PlanRecord

    @cached_property
    def memories(self) -> dict[str, Memory]:
        """Shared memories by name."""
        return {memory.name: memory for memory in self.plan.target.memories}

    @cached_property
    def capacities(self) -> dict[str, int]:
        """Bytes of every shared memory and every private buffer."""
        buffers = {core.name: core.buffer for core in self.plan.target.cores}
        return buffers | {name: memory.capacity for name, memory in self.memories.items()}

    @cached_property
    def tensors(self) -> dict[str, PlannedTensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.plan.tensors}

    @cached_property
    def stored(self) -> dict[tuple[str, str, int], list[PlannedTensor]]:
        """Tensors by network, storage and mini-batch, but for partial sums; weights have mini-batch
        -1."""
        found = defaultdict(list)
        for tensor in (each for each in self.plan.tensors if not each.summed):
            batch = -1 if tensor.kind == "weight" else tensor.mini_batch
            found[tensor.network, tensor.storage, batch].append(tensor)
        return found

    def parts(self, network: str, storage: str, mini_batch: int) -> list[PlannedTensor]:
        """All tensors that hold a storage for a mini-batch."""
        return self.stored.get((network, storage, mini_batch), []) + self.stored.get(
            (network, storage, -1), []
        )

    @cached_property
    def jobs(self) -> dict[str, PlannedJob]:
        """Jobs by name."""
        return {job.name: job for job in self.plan.jobs}

    @cached_property
    def copies(self) -> tuple[PlannedTransfer, ...]:
        """Transfers between memories that serve no single job."""
        return tuple(transfer for transfer in self.plan.transfers if not transfer.job)

    @cached_property
    def makespan(self) -> int:
        """When the last job or transfer ends, in picoseconds."""
        return int(
            max(end.max(initial=0) for end in (self.columns.jobs[1], self.columns.transfers.end))
        )

    @cached_property
    def columns(self) -> Columns:
        """The plan's long lists with numbers for names."""
        tensors = {tensor.name: number for number, tensor in enumerate(self.plan.tensors)}
        return Columns(
            self.plan, tensors, {job.name: number for number, job in enumerate(self.plan.jobs)}
        )

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All jobs, in the plan's order, then all copies."""
        jobs = [(f"job {quoted(job.name)}", job.after) for job in self.plan.jobs]
        copies = [(f"copy {quoted(copy.name)}", copy.after) for copy in self.copies]
        starts, ends = (side.tolist() for side in self.step_times)
        return tuple(
            Step(label, start, end, after)
            for (label, after), start, end in zip(jobs + copies, starts, ends, strict=True)
        )

    @cached_property
    def step_times(self) -> tuple[Ints, Ints]:
        """When steps start and end, in picoseconds."""
        start, end = zip(self.columns.jobs, spans_of(self.copies), strict=True)
        return np.concatenate(start), np.concatenate(end)

    @cached_property
    def step_of(self) -> dict[str, int]:
        """Index of every step by the name of its job or copy."""
        return {
            name: i
            for i, name in enumerate(
                (*(job.name for job in self.plan.jobs), *(copy.name for copy in self.copies))
            )
        }

    @cached_property
    def core_orders(self) -> dict[str, list[int]]:
        """Steps of every core in the order in which it runs them: by start, then end, then place in
        the plan's list."""
        orders = defaultdict(list)
        for i, job in enumerate(self.plan.jobs):
            orders[job.core].append(i)
        return {
            core: sorted(order, key=lambda i: (self.steps[i].start, self.steps[i].end, i))
            for core, order in orders.items()
        }

    @cached_property
    def waits(self) -> tuple[Ints, Ints]:
        """Pairs of a step that ``after`` names and the step that waits for it, step after step."""
        names = [step.after for step in self.steps]
        after = np.repeat(np.arange(len(names)), np.fromiter(map(len, names), np.int64, len(names)))
        return (
            np.fromiter(
                map(self.step_of.__getitem__, chain.from_iterable(names)), np.int64, len(after)
            ),
            after,
        )

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """These pairs, and those of a step and the next on its core."""
        pairs = [pair for order in self.core_orders.values() for pair in pairwise(order)]
        first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return np.concatenate([self.waits[0], first]), np.concatenate([self.waits[1], second])

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """For every step, the steps that its ``after`` names and the step before it on its core."""
        before: list[list[int]] = [[] for _ in self.steps]
        for one, two in zip(*(side.tolist() for side in self.edges), strict=True):
            before[two].append(one)
        return before

    @cached_property
    def topological(self) -> tuple[list[int], list[int]]:
        """Steps, each after its predecessors; or none, and some that wait for one another."""
        try:
            return list(TopologicalSorter(dict(enumerate(self.predecessors))).static_order()), []
        except CycleError as error:
            return [], error.args[1]

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Lifetime of every allocation in picoseconds."""
        own = self.columns.allocations
        return list(zip(own.start.tolist(), own.end.tolist(), strict=True))

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """Allocations of every memory that has any."""
        groups = defaultdict(list)
        for i, allocation in enumerate(self.plan.allocations):
            groups[allocation.memory].append(i)
        return groups

    @cached_property
    def uses(self) -> Uses:
        """Every use of a tensor in a memory by a job, and then by a copy, which reads at its source
        and writes at its destination."""
        operands, moves = self.columns.operands, self.columns.transfers
        copies = np.flatnonzero(
            np.fromiter(
                (not transfer.job for transfer in self.plan.transfers), np.bool_, len(moves.job)
            )
        )
        step = np.concatenate(
            [operands.job, np.repeat(len(self.plan.jobs) + np.arange(len(copies)), 2)]
        )
        tensor = np.concatenate([operands.tensor, np.repeat(moves.tensor[copies], 2)])
        place = np.concatenate(
            [
                operands.memory,
                np.stack([moves.source[copies], moves.destination[copies]], axis=1).ravel(),
            ]
        )
        written = np.concatenate([operands.written, np.tile([False, True], len(copies))])
        start, end = self.step_times
        return Uses(
            step, tensor, place, written, self.columns.held(tensor, place, start[step], end[step])
        )

    @cached_property
    def deliveries(self) -> tuple[Ints, Ints]:
        """Pairs of an allocation and a step that puts the tensor's content there: its producer, or
        a copy; by allocation, then step."""
        uses = self.uses
        puts = uses.written & (uses.held != NOWHERE)
        puts &= (uses.step >= len(self.plan.jobs)) | (
            uses.step == self.columns.producer[uses.tensor]
        )
        held, step = uses.held[puts], uses.step[puts]
        order = np.argsort(held, kind="stable")
        return held[order], step[order]

    @cached_property
    def initial(self) -> Mask:
        """Whether allocations hold their content from the start: those of inputs and weights in
        main memory from time 0."""
        own = self.columns.allocations
        main = own.place == self.columns.place_number[self.plan.target.main.name]
        return np.asarray(main & (own.start == 0) & (self.columns.producer[own.tensor] == UNKNOWN))
