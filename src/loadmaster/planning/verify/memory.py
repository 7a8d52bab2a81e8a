"""Checks of memories: what lies where and when, and that every tensor is where a step looks for
it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.units import format_bytes
from loadmaster.planning.plan_records import PlannedAllocation
from loadmaster.planning.verify.columns import UNKNOWN
from loadmaster.planning.verify.facts import NOWHERE, Facts, quoted, span, when


def sizes(facts: Facts) -> Iterator[str]:
    """An allocation holds all bytes of its tensor, or in a private buffer a tile of some size."""
    own, whole = facts.columns.allocations, facts.columns.tensor_bytes
    size, shared = own.high - own.low, own.place < len(facts.memories)
    for i in np.flatnonzero(np.where(shared, size != whole[own.tensor], size == 0)).tolist():
        allocation = facts.plan.allocations[i]
        if shared[i]:
            yield (
                f"{_label(allocation)} has {allocation.bytes} bytes, the tensor"
                f" {whole[own.tensor[i]]}"
            )
        else:
            yield f"{_label(allocation)} has no bytes"


def capacities(facts: Facts) -> Iterator[str]:
    """Every allocation ends inside its memory."""
    own = facts.columns.allocations
    capacity = np.array(
        [facts.capacities[name] for name in facts.columns.place_number], dtype=np.uint64
    )
    for i in np.flatnonzero(own.high > capacity[own.place]).tolist():
        allocation, most = (
            facts.plan.allocations[i],
            facts.capacities[facts.plan.allocations[i].memory],
        )
        excess = format_bytes(allocation.offset + allocation.bytes - most)
        yield (
            f"{_label(allocation)} at offset {allocation.offset} ends {excess} beyond the memory's"
            f" {format_bytes(most)}"
        )


def lifetimes(facts: Facts) -> Iterator[str]:
    """No allocation lasts beyond the end of the plan."""
    for i in np.flatnonzero(facts.columns.allocations.end > facts.makespan).tolist():
        yield (
            f"{_label(facts.plan.allocations[i])} lasts beyond the end of the plan,"
            f" {when(facts.makespan)}"
        )


def alignments(facts: Facts) -> Iterator[str]:
    """Offsets in shared memories are multiples of the memory's alignment."""
    own = facts.columns.allocations
    aligned = [memory.alignment for memory in facts.plan.target.memories] + [1] * len(
        facts.plan.target.cores
    )
    for i in np.flatnonzero(own.low % np.array(aligned, dtype=np.uint64)[own.place]).tolist():
        allocation = facts.plan.allocations[i]
        multiple = facts.memories[allocation.memory].alignment
        yield f"{_label(allocation)} is at offset {allocation.offset}, no multiple of {multiple}"


def overlaps(facts: Facts) -> Iterator[str]:
    """No two allocations of one memory share an address at one time.

    Sweeps each memory by time over the live allocations, sorted by address: as long as they are
    disjoint, a new one can only collide with its neighbours. One that collides is reported and left
    out. O(n log n).
    """
    for group in facts.groups.values():
        lasting = (
            i
            for i in group
            if facts.plan.allocations[i].bytes and facts.spans[i][0] < facts.spans[i][1]
        )
        yield from _collisions(facts, sorted(lasting, key=facts.spans.__getitem__))


def doubles(facts: Facts) -> Iterator[str]:
    """A tensor has one place at a time in a shared memory, else an operand would not say which of
    them it means."""
    for first, second in zip(*(side.tolist() for side in facts.columns.doubled), strict=True):
        one, two = facts.plan.allocations[first], facts.plan.allocations[second]
        if one.memory in facts.memories:
            offsets, since = f"{one.offset} and {two.offset}", when(facts.spans[second][0])
            yield (
                f"tensor {quoted(one.tensor)} is at two places of {one.memory} at {since}: offsets"
                f" {offsets}"
            )


def tiles(facts: Facts) -> Iterator[str]:
    """While a job runs, its core's buffer holds a tile of each operand, and nothing but operands of
    jobs that the core runs then."""
    own, operands = facts.columns.allocations, facts.columns.operands
    places = facts.columns.place_number
    core = np.array([places[job.core] for job in facts.plan.jobs], dtype=np.int64)[operands.job]
    start, end = (side[operands.job] for side in facts.columns.jobs)
    held = facts.columns.held(operands.tensor, core, start, end)
    spare = own.place >= len(facts.memories)
    spare[held[held != NOWHERE]] = False
    for i in np.flatnonzero(spare).tolist():
        used = (operands.tensor == own.tensor[i]) & (core == own.place[i])
        used &= (start < max(own.end[i], own.start[i] + 1)) & (end > own.start[i] - (start == end))
        if not used.any():
            yield (
                f"{_label(facts.plan.allocations[i])} is of no use: no job on that core has the"
                " tensor as an operand at that time"
            )
    buffered = np.array([facts.capacities[name] > 0 for name in places])[core]
    for row in np.flatnonzero(buffered & (held == NOWHERE)).tolist():
        job = facts.plan.jobs[operands.job[row]]
        yield (
            f"job {quoted(job.name)} has no tile of"
            f" {quoted(facts.plan.tensors[operands.tensor[row]].name)} in {job.core} over"
            f" {span(job.start, job.end)}"
        )


def inputs(facts: Facts) -> Iterator[str]:
    """Tensors that no job produces lie in main memory from time 0."""
    main = facts.plan.target.main.name
    given = np.flatnonzero(facts.columns.producer == UNKNOWN)
    for tensor in _not_in_main(facts, given, 0, 0):
        yield f"tensor {tensor} has no producer and is not in {main} at the start"


def weights(facts: Facts) -> Iterator[str]:
    """Weights keep their place in main memory to the end, so that the next run finds them there."""
    main, end = facts.plan.target.main.name, facts.makespan
    own = np.flatnonzero([tensor.kind == "weight" for tensor in facts.plan.tensors])
    for weight in _not_in_main(facts, own, 0, end):
        yield (
            f"weight {weight} is not at one place of {main} from the start to the end,"
            f" {when(end)}, for the next run"
        )


def _not_in_main(facts: Facts, tensors: Ints, start: int, end: int) -> Iterator[str]:
    """Names of those of some tensors that no allocation in main memory holds all that time."""
    for number in tensors[_in_main(facts, tensors, start, end) == NOWHERE].tolist():
        yield quoted(facts.plan.tensors[number].name)


def outputs(facts: Facts) -> Iterator[str]:
    """Outputs of the networks lie in main memory at the end, written by their producer or a
    copy."""
    main, end = facts.plan.target.main.name, facts.makespan
    own = np.flatnonzero([tensor.is_output for tensor in facts.plan.tensors])
    held = _in_main(facts, own, end, end)
    there = np.append(facts.initial, False)
    there[facts.deliveries[0]] = True
    for number, place in zip(own[~there[held]].tolist(), held[~there[held]].tolist(), strict=True):
        name = quoted(facts.plan.tensors[number].name)
        if place == NOWHERE:
            yield f"output {name} is not in {main} at the end, {when(end)}"
        else:
            yield f"output {name} has a place in {main} at the end, but nothing writes it there"


def _in_main(facts: Facts, tensors: Ints, start: int, end: int) -> Ints:
    """The allocation that holds each of some tensors in main memory over all of [start, end)."""
    main = facts.columns.place_number[facts.plan.target.main.name]
    return facts.columns.held(
        tensors, *(np.full(len(tensors), value, dtype=np.int64) for value in (main, start, end))
    )


def residence(facts: Facts) -> Iterator[str]:
    """Every operand, and both ends of every copy, has a place in its memory for as long as the step
    lasts."""
    uses = facts.uses
    for use in np.flatnonzero((uses.held == NOWHERE) & (uses.place < len(facts.memories))).tolist():
        step, name = facts.steps[uses.step[use]], facts.plan.tensors[uses.tensor[use]].name
        does, memory = "writes" if uses.written[use] else "reads", _memory(facts, use)
        yield (
            f"{step.label} {does} {quoted(name)} in {memory} over [{when(step.start)},"
            f" {when(step.end)}), but no allocation holds the tensor there all that time"
        )


def arrival(facts: Facts) -> Iterator[str]:
    """What a step reads is there before the step starts: from time 0, by the producer, or by a copy
    into the same allocation."""
    uses, (held, step), (starts, ends) = facts.uses, facts.deliveries, facts.step_times
    never = np.iinfo(np.int64).max
    first = np.full(len(facts.plan.allocations), never)
    np.minimum.at(first, held, ends[step])
    reads = np.flatnonzero(~uses.written & (uses.held != NOWHERE))
    reads = reads[~facts.initial[uses.held[reads]]]
    for use in reads[first[uses.held[reads]] > starts[uses.step[reads]]].tolist():
        reader, there = facts.steps[uses.step[use]], int(first[uses.held[use]])
        reason = (
            f"it is there only from {when(there)} on" if there != never else "nothing puts it there"
        )
        name = quoted(facts.plan.tensors[uses.tensor[use]].name)
        yield (
            f"{reader.label} reads {name} from {_memory(facts, use)} at {when(reader.start)}, but"
            f" {reason}"
        )


def in_place(facts: Facts) -> Iterator[str]:
    """Cores use operands only in memories that allow it."""
    uses = facts.uses
    barred = np.array(
        [not memory.in_place for memory in facts.plan.target.memories]
        + [False] * len(facts.plan.target.cores)
    )
    for use in np.flatnonzero(barred[uses.place] & (uses.step < len(facts.plan.jobs))).tolist():
        name = quoted(facts.plan.tensors[uses.tensor[use]].name)
        yield (
            f"{facts.steps[uses.step[use]].label} uses {name} in {_memory(facts, use)}, where cores"
            " cannot use operands"
        )


def _memory(facts: Facts, use: int) -> str:
    """The name of the memory of a use."""
    return list(facts.columns.place_number)[int(facts.uses.place[use])]


def _label(allocation: PlannedAllocation) -> str:
    return (
        f"the allocation of {quoted(allocation.tensor)} in {allocation.memory} over"
        f" {span(allocation.start, allocation.end)}"
    )


def _collisions(facts: Facts, group: Iterable[int]) -> Iterator[str]:
    """Overlaps among allocations of one memory, given by start."""
    allocations = facts.plan.allocations
    live: list[tuple[int, int]] = []
    ending: list[tuple[int, int]] = []
    for i in group:
        start, end = facts.spans[i]
        while ending and ending[0][0] <= start:
            gone = heappop(ending)[1]
            del live[bisect_left(live, (allocations[gone].offset, gone))]
        at = bisect_left(live, (allocations[i].offset, i))
        hit = [
            other
            for _, other in live[max(0, at - 1) : at + 1]
            if _share_addresses(allocations[i], allocations[other])
        ]
        if hit:
            other = allocations[hit[0]]
            yield (
                f"{_label(allocations[i])} at offset {allocations[i].offset} overlaps"
                f" {_label(other)} at offset {other.offset}"
            )
        else:
            insort(live, (allocations[i].offset, i))
            heappush(ending, (end, i))


def _share_addresses(one: PlannedAllocation, two: PlannedAllocation) -> bool:
    return one.offset < two.offset + two.bytes and two.offset < one.offset + one.bytes
