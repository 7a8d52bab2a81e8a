"""Checks of memories: what lies where and when, and that every tensor is where a step looks for it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import numpy as np

from loadmaster.core.units import format_bytes
from loadmaster.planning.plan_records import PlannedAllocation
from loadmaster.planning.verify.facts import NOWHERE, Facts, quoted, span, when

Tile = tuple[str, str, int, int]
"""A core, a tensor, and from when to when its buffer holds a tile of it."""


def sizes(facts: Facts) -> Iterator[str]:
    """An allocation holds all bytes of its tensor, or in a private buffer a tile of some size."""
    for allocation in facts.plan.allocations:
        whole = facts.tensors[allocation.tensor].bytes
        if allocation.memory in facts.memories and allocation.bytes != whole:
            yield f"{_label(allocation)} has {allocation.bytes} bytes, the tensor {whole}"
        elif allocation.memory not in facts.memories and allocation.bytes == 0:
            yield f"{_label(allocation)} has no bytes"


def capacities(facts: Facts) -> Iterator[str]:
    """Every allocation ends inside its memory."""
    for allocation in facts.plan.allocations:
        capacity = facts.capacities[allocation.memory]
        if allocation.offset + allocation.bytes > capacity:
            excess = format_bytes(allocation.offset + allocation.bytes - capacity)
            yield f"{_label(allocation)} at offset {allocation.offset} ends {excess} beyond the memory's {format_bytes(capacity)}"


def alignments(facts: Facts) -> Iterator[str]:
    """Offsets in shared memories are multiples of the memory's alignment."""
    for allocation in facts.plan.allocations:
        memory = facts.memories.get(allocation.memory)
        if memory is not None and allocation.offset % memory.alignment:
            yield f"{_label(allocation)} is at offset {allocation.offset}, no multiple of {memory.alignment}"


def overlaps(facts: Facts) -> Iterator[str]:
    """No two allocations of one memory share an address at one time.

    Sweeps each memory by time over the live allocations, sorted by address: as long as they are disjoint, a new one can only collide
    with its neighbours. One that collides is reported and left out. O(n log n).
    """
    for group in facts.groups.values():
        if _in_turn(facts, group):
            continue
        lasting = (i for i in group if facts.plan.allocations[i].bytes and facts.spans[i][0] < facts.spans[i][1])
        yield from _collisions(facts, sorted(lasting, key=facts.spans.__getitem__))


def doubles(facts: Facts) -> Iterator[str]:
    """A tensor has one place at a time in a shared memory, else an operand would not say which of them it means."""
    for (tensor, memory), group in facts.places.items():
        for first, second in pairwise(group if memory in facts.memories else ()):
            if facts.spans[first][1] > facts.spans[second][0]:
                offsets = " and ".join(str(facts.plan.allocations[i].offset) for i in (first, second))
                yield f"tensor {quoted(tensor)} is at two places of {memory} at {when(facts.spans[second][0])}: offsets {offsets}"


def tiles(facts: Facts) -> Iterator[str]:
    """While a job runs, its core's buffer holds a tile of each operand, and nothing but operands of jobs that the core runs then."""
    needed, buffers = _tiles_of_jobs(facts), {core.name for core in facts.plan.target.cores if core.buffer}
    private = (i for memory, group in facts.groups.items() if memory not in facts.memories for i in group)
    given = {(facts.plan.allocations[i].memory, facts.plan.allocations[i].tensor, *facts.spans[i]) for i in private}
    # Almost always both are the same, and no tile need be looked at alone.
    if not given <= needed:
        yield from _idle_tiles(facts)
    if any(tile[0] in buffers for tile in needed - given):
        yield from _missing_tiles(facts)


def _in_turn(facts: Facts, group: list[int]) -> bool:
    """Whether all that begin together end together, before others begin, and lie one above the other, as tiles of job after job do."""
    start, end, low, high = (column[group] for column in facts.boxes)
    lasting = np.flatnonzero((low < high) & (start < end))
    order = lasting[np.lexsort((low[lasting], start[lasting]))]
    before, after = order[:-1], order[1:]
    above = (end[before] == end[after]) & (high[before] <= low[after])
    return bool(np.where(start[before] == start[after], above, end[before] <= start[after]).all())


def _tiles_of_jobs(facts: Facts) -> Set[Tile]:
    """The tiles that are there just as long as the jobs whose operands they are."""
    spans = zip(facts.plan.jobs, facts.steps, strict=False)
    return {(job.core, operand.tensor, step.start, step.end) for job, step in spans for operand in (*job.reads, *job.writes)}


def _idle_tiles(facts: Facts) -> Iterator[str]:
    """Tiles that no job needs."""
    uses: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for core, order in facts.core_orders.items():
        for i in order:
            _, start, end, _ = facts.steps[i]
            for operand in (*facts.plan.jobs[i].reads, *facts.plan.jobs[i].writes):
                uses[core, operand.tensor].append((start, end))
    for memory in sorted(facts.groups.keys() - facts.memories.keys()):
        for i in facts.groups[memory]:
            allocation = facts.plan.allocations[i]
            if not _used(uses[memory, allocation.tensor], *facts.spans[i]):
                yield f"{_label(allocation)} is of no use: no job on that core has the tensor as an operand at that time"


def _missing_tiles(facts: Facts) -> Iterator[str]:
    """Operands without a tile that lasts as long as the job; buffers of no bytes have none."""
    # Of the tiles of one tensor, by start: the latest end up to each.
    ends = {
        key: list(accumulate((facts.spans[i][1] for i in group), max))
        for key, group in facts.places.items()
        if key[1] not in facts.memories
    }
    for core in facts.plan.target.cores:
        for i in facts.core_orders.get(core.name, ()) if core.buffer else ():
            job, step = facts.plan.jobs[i], facts.steps[i]
            for tensor in dict.fromkeys(operand.tensor for operand in (*job.reads, *job.writes)):
                key = (tensor, core.name)
                at = bisect_right(facts.place_starts.get(key, ()), step.start) - 1
                if at < 0 or ends[key][at] < step.end:
                    yield f"{step.label} has no tile of {quoted(tensor)} in {core.name} over {span(job.start, job.end)}"


def inputs(facts: Facts) -> Iterator[str]:
    """Tensors that no job produces lie in main memory from time 0."""
    main = facts.plan.target.main.name
    for tensor in facts.plan.tensors:
        if not tensor.producer and facts.place(tensor.name, main, 0, 0) == NOWHERE:
            yield f"tensor {quoted(tensor.name)} has no producer and is not in {main} at the start"


def weights(facts: Facts) -> Iterator[str]:
    """Weights keep their place in main memory to the end, so that the next run finds them there."""
    main, end = facts.plan.target.main.name, facts.makespan
    for tensor in facts.plan.tensors:
        if tensor.kind == "weight" and facts.place(tensor.name, main, 0, end) == NOWHERE:
            yield f"weight {quoted(tensor.name)} is not at one place of {main} from the start to the end, {when(end)}, for the next run"


def outputs(facts: Facts) -> Iterator[str]:
    """Outputs of the networks lie in main memory at the end, written by their producer or a copy."""
    main = facts.plan.target.main.name
    for tensor in facts.plan.tensors:
        if not tensor.is_output:
            continue
        place = facts.place(tensor.name, main, facts.makespan, facts.makespan)
        if place == NOWHERE:
            yield f"output {quoted(tensor.name)} is not in {main} at the end, {when(facts.makespan)}"
        elif place not in facts.initial and not facts.deliveries.get(place):
            yield f"output {quoted(tensor.name)} has a place in {main} at the end, but nothing writes it there"


def residence(facts: Facts) -> Iterator[str]:
    """Every operand, and both ends of every copy, has a place in its memory for as long as the step lasts."""
    for access in facts.accesses:
        if access.place == NOWHERE and access.memory in facts.memories:
            step = facts.steps[access.step]
            does = "writes" if access.writes else "reads"
            yield (
                f"{step.label} {does} {quoted(access.tensor)} in {access.memory} over [{when(step.start)}, {when(step.end)}), "
                "but no allocation holds the tensor there all that time"
            )


def arrival(facts: Facts) -> Iterator[str]:
    """What a step reads is there before the step starts: from time 0, by the producer, or by a copy into the same allocation."""
    first = {place: min(facts.steps[step].end for step in steps) for place, steps in facts.deliveries.items()}
    for number, tensor, memory, writes, place in facts.accesses:
        if writes or place == NOWHERE or place in facts.initial:
            continue
        step = facts.steps[number]
        if place not in first or first[place] > step.start:
            reason = f"it is there only from {when(first[place])} on" if place in first else "nothing puts it there"
            yield f"{step.label} reads {quoted(tensor)} from {memory} at {when(step.start)}, but {reason}"


def in_place(facts: Facts) -> Iterator[str]:
    """Cores use operands only in memories that allow it."""
    barred = {memory.name for memory in facts.memories.values() if not memory.in_place}
    for access in facts.accesses:
        if access.memory in barred and access.step < len(facts.plan.jobs):
            yield f"{facts.steps[access.step].label} uses {quoted(access.tensor)} in {access.memory}, where cores cannot use operands"


def _label(allocation: PlannedAllocation) -> str:
    return f"the allocation of {quoted(allocation.tensor)} in {allocation.memory} over {span(allocation.start, allocation.end)}"


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
        hit = [other for _, other in live[max(0, at - 1) : at + 1] if _share_addresses(allocations[i], allocations[other])]
        if hit:
            other = allocations[hit[0]]
            yield f"{_label(allocations[i])} at offset {allocations[i].offset} overlaps {_label(other)} at offset {other.offset}"
        else:
            insort(live, (allocations[i].offset, i))
            heappush(ending, (end, i))


def _share_addresses(one: PlannedAllocation, two: PlannedAllocation) -> bool:
    return one.offset < two.offset + two.bytes and two.offset < one.offset + one.bytes


def _used(runs: list[tuple[int, int]], start: int, end: int) -> bool:
    """Whether a core runs something at some time of [start, end), of starts and ends of jobs in their order."""
    latest = bisect_left(runs, (max(start, end - 1) + 1,)) - 1
    return latest >= 0 and (runs[latest][1] > start or runs[latest][0] == start)
