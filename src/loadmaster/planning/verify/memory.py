"""Checks of memories: what lies where and when, and that every tensor is where a step looks for
it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from loadmaster.core.units import format_bytes
from loadmaster.planning.plan_records import PlannedAllocation
from loadmaster.planning.verify.facts import Facts, quoted, span, when


def sizes(facts: Facts) -> Iterator[str]:
    """An allocation holds all bytes of its tensor, or in a private buffer a tile of some size."""
    for allocation in facts.plan.allocations:
        whole = facts.tensors[allocation.tensor].bytes
        if allocation.memory in facts.memories and allocation.bytes != whole:
            yield f"{_label(allocation)} has {allocation.bytes} bytes, the tensor {whole}"
        elif allocation.memory not in facts.memories and not allocation.bytes:
            yield f"{_label(allocation)} has no bytes"


def capacities(facts: Facts) -> Iterator[str]:
    """Every allocation ends inside its memory."""
    for allocation in facts.plan.allocations:
        most = facts.capacities[allocation.memory]
        excess = allocation.offset + allocation.bytes - most
        if excess > 0:
            yield (
                f"{_label(allocation)} at offset {allocation.offset} ends {format_bytes(excess)}"
                f" beyond the memory's {format_bytes(most)}"
            )


def lifetimes(facts: Facts) -> Iterator[str]:
    """No allocation lasts beyond the end of the plan."""
    for allocation, (_, end) in zip(facts.plan.allocations, facts.spans, strict=True):
        if end > facts.makespan:
            yield f"{_label(allocation)} lasts beyond the end of the plan, {when(facts.makespan)}"


def alignments(facts: Facts) -> Iterator[str]:
    """Offsets in shared memories are multiples of the memory's alignment."""
    for allocation in facts.plan.allocations:
        memory = facts.memories.get(allocation.memory)
        if memory and allocation.offset % memory.alignment:
            yield (
                f"{_label(allocation)} is at offset {allocation.offset}, no multiple of"
                f" {memory.alignment}"
            )


def overlaps(facts: Facts) -> Iterator[str]:
    """No two allocations of one memory share an address at one time. O(n log n)."""
    allocations = facts.plan.allocations
    for group in facts.groups.values():
        for one, two in successions(facts, group):
            if facts.spans[one][1] > facts.spans[two][0]:
                yield (
                    f"{_label(allocations[two])} at offset {allocations[two].offset} overlaps"
                    f" {_label(allocations[one])} at offset {allocations[one].offset}"
                )


def doubles(facts: Facts) -> Iterator[str]:
    """A tensor has one place at a time in a shared memory, else an operand would not say which of
    them it means."""
    for (tensor, memory), own in facts.places.items():
        for (_, end, one), (start, _, two) in pairwise(own) if memory in facts.memories else ():
            if end > start:
                offsets = (facts.plan.allocations[i].offset for i in (one, two))
                yield (
                    f"tensor {quoted(tensor)} is at two places of {memory} at {when(start)}:"
                    f" offsets {' and '.join(map(str, offsets))}"
                )


def tiles(facts: Facts) -> Iterator[str]:
    """While a job runs, its core's buffer holds a tile of each operand, and nothing but operands of
    jobs that the core runs then."""
    used, runs = set(), defaultdict(list)
    for core, order in facts.core_orders.items():
        for job, step in ((facts.plan.jobs[i], facts.steps[i]) for i in order):
            for tensor in dict.fromkeys(operand.tensor for operand in (*job.reads, *job.writes)):
                runs[tensor, core].append((step.start, step.end))
                held = facts.held(tensor, core, step.start, step.end)
                used.add(held)
                if held is None and facts.capacities[core]:
                    yield (
                        f"{step.label} has no tile of {quoted(tensor)} in {core} over"
                        f" {span(job.start, job.end)}"
                    )
    for i, allocation in enumerate(facts.plan.allocations):
        first, last = facts.spans[i]
        if i not in used and allocation.memory not in facts.memories:
            own = runs[allocation.tensor, allocation.memory]
            if not any(a < max(last, first + 1) and (first < b or a == first) for a, b in own):
                yield (
                    f"{_label(allocation)} is of no use: no job on that core has the tensor as an"
                    " operand at that time"
                )


def inputs(facts: Facts) -> Iterator[str]:
    """Tensors that no job produces lie in main memory from time 0."""
    main = facts.plan.target.main.name
    for tensor in facts.plan.tensors:
        if not tensor.producer and facts.held(tensor.name, main, 0, 0) is None:
            name = quoted(tensor.name)
            yield f"tensor {name} has no producer and is not in {main} at the start"


def weights(facts: Facts) -> Iterator[str]:
    """Weights keep their place in main memory to the end, so that the next run finds them there."""
    main, end = facts.plan.target.main.name, facts.makespan
    for tensor in facts.plan.tensors:
        if tensor.kind == "weight" and facts.held(tensor.name, main, 0, end) is None:
            yield (
                f"weight {quoted(tensor.name)} is not at one place of {main} from the start to the"
                f" end, {when(end)}, for the next run"
            )


def outputs(facts: Facts) -> Iterator[str]:
    """Outputs of the networks lie in main memory at the end, written by their producer or a
    copy."""
    main, end = facts.plan.target.main.name, facts.makespan
    for tensor in (each for each in facts.plan.tensors if each.is_output):
        held = facts.held(tensor.name, main, end, end)
        if held is None:
            yield f"output {quoted(tensor.name)} is not in {main} at the end, {when(end)}"
        elif held not in facts.initial and held not in facts.deliveries:
            yield (
                f"output {quoted(tensor.name)} has a place in {main} at the end, but nothing writes"
                " it there"
            )


def residence(facts: Facts) -> Iterator[str]:
    """Every operand, and both ends of every copy, has a place in its memory for as long as the step
    lasts."""
    for use in facts.uses:
        step = facts.steps[use.step]
        if use.held is None and use.memory in facts.memories:
            yield (
                f"{step.label} {'writes' if use.written else 'reads'} {quoted(use.tensor)} in"
                f" {use.memory} over [{when(step.start)}, {when(step.end)}), but no allocation"
                " holds the tensor there all that time"
            )


def arrival(facts: Facts) -> Iterator[str]:
    """What a step reads is there before the step starts: from time 0, by the producer, or by a copy
    into the same allocation."""
    for use, puts in facts.fetches:
        reader = facts.steps[use.step]
        there = min((facts.steps[put].end for put in puts), default=None)
        if there is None or there > reader.start:
            reason = (
                "nothing puts it there"
                if there is None
                else f"it is there only from {when(there)} on"
            )
            yield (
                f"{reader.label} reads {quoted(use.tensor)} from {use.memory} at"
                f" {when(reader.start)}, but {reason}"
            )


def in_place(facts: Facts) -> Iterator[str]:
    """Cores use operands only in memories that allow it."""
    for use in facts.uses:
        if use.step < len(facts.plan.jobs) and not facts.memories[use.memory].in_place:
            yield (
                f"{facts.steps[use.step].label} uses {quoted(use.tensor)} in {use.memory}, where"
                " cores cannot use operands"
            )


def _label(allocation: PlannedAllocation) -> str:
    """Name an allocation."""
    return (
        f"the allocation of {quoted(allocation.tensor)} in {allocation.memory} over"
        f" {span(allocation.start, allocation.end)}"
    )


def successions(facts: Facts, allocations: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Pairs (earlier, later) of allocations of one memory where the earlier was the latest to have
    some of the later's bytes.

    Sweeps by time over a map from addresses to their latest owners; an allocation adds two bounds
    to it and removes those inside, so there are O(n) pairs. Allocations overlap in time only if the
    two of some pair do: until the first that does, no owner that is alive has lost its addresses.
    """
    bounds: list[int] = [0]
    owners: list[int | None] = [None]
    for i in sorted(allocations, key=facts.spans.__getitem__):
        allocation = facts.plan.allocations[i]
        if not allocation.bytes:
            continue
        low = _cut(bounds, owners, allocation.offset)
        high = _cut(bounds, owners, allocation.offset + allocation.bytes)
        for owner in dict.fromkeys(owners[low:high]):
            if owner is not None:
                yield owner, i
        bounds[low:high] = [allocation.offset]
        owners[low:high] = [i]


def _cut(bounds: list[int], owners: list[int | None], address: int) -> int:
    """Index of the stretch that begins at an address, after splitting the one around it if need
    be."""
    at = bisect_left(bounds, address)
    if at == len(bounds) or bounds[at] != address:
        bounds.insert(at, address)
        owners.insert(at, owners[at - 1])
    return at
