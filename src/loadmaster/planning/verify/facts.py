"""What the checks look up: the plan's records by name, its jobs and copies as one list of steps, and who touches what where.

Each is built on first use: those that need sound numbers and names are first used by checks that come after the checks of these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from loadmaster.core.arrays import Ints, UInt64s
from loadmaster.core.units import PICOSECONDS, format_seconds
from loadmaster.planning.plan_records import PlannedJob, PlannedTensor, PlannedTransfer, PlanRecord
from loadmaster.targets.hardware import Memory

NOWHERE = -1
_LONGEST_NAME = 120
"""Characters of a name that a message quotes, at most."""


class Step(NamedTuple):
    """A job or a copy: what ``after`` lists order. Times in picoseconds."""

    label: str
    start: int
    end: int
    after: tuple[str, ...]


class Access(NamedTuple):
    """A step's use of a tensor in a shared memory; ``place`` is the index of the allocation that holds it then, or ``NOWHERE``."""

    step: int
    tensor: str
    memory: str
    writes: bool
    place: int


def ps(seconds: float) -> int:
    """Picoseconds, in which times compare exactly."""
    return round(seconds * PICOSECONDS)


def spans_of(records: Sequence[Any]) -> list[tuple[int, int]]:
    """Start and end of every record in picoseconds, as :func:`ps` of each; times must be sound numbers."""
    seconds = (np.fromiter(map(attrgetter(side), records), np.float64, len(records)) for side in ("start", "end"))
    return list(zip(*(np.rint(each * PICOSECONDS).astype(np.int64).tolist() for each in seconds), strict=True))


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
    return f"the transfer of {quoted(transfer.tensor)} from {transfer.source} to {transfer.destination} for job {quoted(transfer.job)}"


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
        return max((end for spans in (spans_of(self.plan.jobs), self.moves) for _, end in spans), default=0)

    @cached_property
    def moves(self) -> list[tuple[int, int]]:
        """Start and end of every transfer, copies among them, in picoseconds."""
        return spans_of(self.plan.transfers)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All jobs, in the plan's order, then all copies."""
        jobs = [(f"job {quoted(job.name)}", job.after) for job in self.plan.jobs]
        copies = [(f"copy {quoted(copy.name)}", copy.after) for copy in self.copies]
        spans = chain(spans_of(self.plan.jobs), spans_of(self.copies))
        return tuple(Step(label, *span, after) for (label, after), span in zip(jobs + copies, spans, strict=True))

    @cached_property
    def step_of(self) -> dict[str, int]:
        """Index of every step by the name of its job or copy."""
        return {name: i for i, name in enumerate((*(job.name for job in self.plan.jobs), *(copy.name for copy in self.copies)))}

    @cached_property
    def core_orders(self) -> dict[str, list[int]]:
        """Steps of every core in the order in which it runs them: by start, then end, then place in the plan's list."""
        orders = defaultdict(list)
        for i, job in enumerate(self.plan.jobs):
            orders[job.core].append(i)
        return {core: sorted(order, key=lambda i: (self.steps[i].start, self.steps[i].end, i)) for core, order in orders.items()}

    @cached_property
    def turns(self) -> list[tuple[str | int, int]]:
        """For every job its core and how many run before it there; every copy counts as a core of its own."""
        turns: list[tuple[str | int, int]] = [(step, 0) for step in range(len(self.steps))]
        for core, order in self.core_orders.items():
            for place, step in enumerate(order):
                turns[step] = core, place
        return turns

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """For every step, the steps that its ``after`` names and the step before it on its core."""
        before = [[self.step_of[name] for name in step.after] for step in self.steps]
        for order in self.core_orders.values():
            for first, second in pairwise(order):
                before[second].append(first)
        return before

    @cached_property
    def direct(self) -> list[frozenset[int]]:
        """The same as sets."""
        return [frozenset(before) for before in self.predecessors]

    @cached_property
    def topological(self) -> list[int]:
        """Steps, each after its predecessors; those on or behind a cycle are left out."""
        waiting = [len(before) for before in self.predecessors]
        followers: list[list[int]] = [[] for _ in self.steps]
        for i, before in enumerate(self.predecessors):
            for predecessor in before:
                followers[predecessor].append(i)
        order = deque(i for i, count in enumerate(waiting) if count == 0)
        done = []
        while order:
            done.append(order.popleft())
            for follower in followers[done[-1]]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    order.append(follower)
        return done

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Lifetime of every allocation in picoseconds."""
        return spans_of(self.plan.allocations)

    @cached_property
    def boxes(self) -> tuple[Ints, Ints, UInt64s, UInt64s]:
        """The same as arrays, start and end, and of every allocation the first byte and the one after the last."""
        start, end = np.array(self.spans, dtype=np.int64).reshape(-1, 2).T
        low, size = (np.fromiter(map(attrgetter(name), self.plan.allocations), np.uint64, len(self.spans)) for name in ("offset", "bytes"))
        return start, end, low, low + size

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """Allocations of every memory that has any."""
        groups = defaultdict(list)
        for i, allocation in enumerate(self.plan.allocations):
            groups[allocation.memory].append(i)
        return groups

    @cached_property
    def places(self) -> dict[tuple[str, str], list[int]]:
        """Allocations of every (tensor, memory) by start."""
        places = defaultdict(list)
        for i in sorted(range(len(self.spans)), key=self.spans.__getitem__):
            places[self.plan.allocations[i].tensor, self.plan.allocations[i].memory].append(i)
        return places

    @cached_property
    def place_starts(self) -> dict[tuple[str, str], list[int]]:
        """When those allocations start."""
        return {key: [self.spans[i][0] for i in group] for key, group in self.places.items()}

    def place(self, tensor: str, memory: str, start: int, end: int) -> int:
        """Allocation that holds a tensor in a memory over all of [start, end), or ``NOWHERE``."""
        latest = bisect_right(self.place_starts.get((tensor, memory), ()), start) - 1
        if latest < 0:
            return NOWHERE
        candidate = self.places[tensor, memory][latest]
        return candidate if self.spans[candidate][1] >= end else NOWHERE

    @cached_property
    def accesses(self) -> list[Access]:
        """Every use of a tensor in a shared memory by a job or a copy."""
        return [
            Access(number, tensor, memory, writes, self.place(tensor, memory, start, end))
            for number, ((_, start, end, _), uses) in enumerate(zip(self.steps, self._uses(), strict=True))
            for tensor, memory, writes in uses
        ]

    def _uses(self) -> Iterator[list[tuple[str, str, bool]]]:
        """For every step, the tensors that it uses, where, and whether it writes them."""
        for job in self.plan.jobs:
            reads = [(operand.tensor, operand.memory, False) for operand in job.reads]
            yield reads + [(operand.tensor, operand.memory, True) for operand in job.writes]
        for copy in self.copies:
            yield [(copy.tensor, copy.source, False), (copy.tensor, copy.destination, True)]

    @cached_property
    def deliveries(self) -> Mapping[int, list[int]]:
        """For every allocation, the steps that put the tensor's content there: its producer, and copies."""
        deliveries = defaultdict(list)
        for step, tensor, _, writes, place in self.accesses:
            if writes and (step >= len(self.plan.jobs) or self.plan.jobs[step].name == self.tensors[tensor].producer):
                deliveries[place].append(step)
        return deliveries

    @cached_property
    def initial(self) -> frozenset[int]:
        """Allocations that hold their content from the start: of inputs and weights in main memory from time 0."""
        main = self.groups.get(self.plan.target.main.name, ())
        tensor = {i: self.plan.allocations[i].tensor for i in main if self.spans[i][0] == 0}
        return frozenset(i for i, name in tensor.items() if not self.tensors[name].producer)
