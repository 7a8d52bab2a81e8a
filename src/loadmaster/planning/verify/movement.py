"""Checks of transfers: all bytes of all operands move, in time, and no link carries more than it
can."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import pairwise

from loadmaster.core.units import PICOSECONDS
from loadmaster.planning.plan_records import PlannedTransfer
from loadmaster.planning.verify.facts import Facts, ps, quoted, span, transfer_label, when
from loadmaster.targets.hardware import Memory

Way = tuple[str, str, str, str]
"""A job, what moves for it, from where and where to."""


def operands(facts: Facts) -> Iterator[str]:
    """A job reads at least a byte of what it reads and writes at least the whole of what it
    writes."""
    for job, operand, written in facts.operands:
        whole = facts.tensors[operand.tensor].bytes
        if written and operand.bytes < whole:
            yield (
                f"job {quoted(job.name)} writes {operand.bytes} of the {whole} bytes of"
                f" {quoted(operand.tensor)}"
            )
        elif not written and operand.bytes == 0:
            yield f"job {quoted(job.name)} reads no bytes of {quoted(operand.tensor)}"


def streams(facts: Facts) -> Iterator[str]:
    """As long as a job runs, exactly the bytes of its operands move between their memories and its
    core; nothing waits for one of these transfers, so that they have no names."""
    due, moved = Counter[Way](), Counter[Way]()
    for job, operand, written in facts.operands:
        ends = (job.core, operand.memory) if written else (operand.memory, job.core)
        due[job.name, operand.tensor, *ends] += operand.bytes
    for transfer in facts.plan.transfers:
        if not transfer.job:
            continue
        job = facts.jobs[transfer.job]
        ends = (transfer.source, transfer.destination)
        moved[job.name, transfer.tensor, *ends] += transfer.bytes
        if (ps(transfer.start), ps(transfer.end)) != (ps(job.start), ps(job.end)):
            yield (
                f"{transfer_label(transfer)} lasts over {span(transfer.start, transfer.end)}, the"
                f" job over {span(job.start, job.end)}"
            )
        if transfer.name or transfer.after:
            yield f"{transfer_label(transfer)} is part of a job, and has a name or waits of its own"
    for key in dict.fromkeys((*due, *moved)):
        if due[key] != moved[key]:
            name, tensor, source, destination = key
            way = f"{quoted(tensor)} from {source} to {destination}"
            yield f"job {quoted(name)} needs {due[key]} bytes of {way}, transfers move {moved[key]}"


def copies(facts: Facts) -> Iterator[str]:
    """Copies take whole tensors from one shared memory to the other, one after the other and no
    faster than the copy engine can."""
    for copy in facts.copies:
        label = transfer_label(copy)
        whole = facts.tensors[copy.tensor].bytes
        if copy.source == copy.destination or not {copy.source, copy.destination} <= set(
            facts.memories
        ):
            yield (
                f"{label} goes from {copy.source} to {copy.destination}, not between main and fast"
                " memory"
            )
            continue
        if copy.bytes != whole:
            yield f"{label} moves {copy.bytes} of the {whole} bytes of {quoted(copy.tensor)}"
        least = _engine_seconds(facts, copy) * PICOSECONDS
        # Each end of the copy may have been rounded by half a picosecond.
        if ps(copy.end) - ps(copy.start) + 1 < least * (1 - 1e-9):
            yield (
                f"{label} takes {when(ps(copy.end) - ps(copy.start))}, the copy engine needs"
                f" {when(least)}"
            )
    for one, two in pairwise(sorted(facts.copies, key=lambda copy: (ps(copy.start), ps(copy.end)))):
        if ps(two.start) < ps(one.end):
            spans = (
                f"{span(one.start, one.end)} and {transfer_label(two)} over"
                f" {span(two.start, two.end)}"
            )
            yield f"the copy engine makes {transfer_label(one)} over {spans}"


def bandwidths(facts: Facts) -> Iterator[str]:
    """Every link has the time for all that crosses it.

    A link can share its time among transfers in any proportion; they all fit between their starts
    and ends if, and only if, serving the earliest end first makes every end, because that order
    minimises the greatest lateness. Lateness up to a billionth of the makespan and, for rounded
    times, a picosecond for each transfer since the link was last idle passes. O(n log n).
    """
    for memory in facts.memories.values():
        needs = _needs(facts, memory)
        for late, at in _late(needs, facts.makespan * 1e-9):
            transfer = facts.plan.transfers[needs[at][3]]
            yield (
                f"the link of {memory.name} is {when(late)} late with {transfer_label(transfer)},"
                f" which ends at {when(ps(transfer.end))}"
            )


def _engine_seconds(facts: Facts, copy: PlannedTransfer) -> float:
    """Seconds that the copy engine needs while jobs run; none if the target does not say."""
    engine = facts.plan.target.copy
    if engine is None:
        return 0.0
    names = [memory.name for memory in facts.plan.target.memories]
    speed = engine.overlapping[names.index(copy.destination)]
    return copy.bytes / speed if speed > 0 else math.inf


def _needs(facts: Facts, memory: Memory) -> list[tuple[int, int, float, int]]:
    """When transfers over a link start and end, picoseconds of its time that each needs, and which
    it is; by these."""
    return sorted(
        (
            ps(transfer.start),
            ps(transfer.end),
            transfer.bytes / bandwidth * PICOSECONDS,
            number,
        )
        for number, transfer in enumerate(facts.plan.transfers)
        for place, bandwidth in (
            (transfer.source, memory.read_bandwidth),
            (transfer.destination, memory.write_bandwidth),
        )
        if place == memory.name and transfer.bytes
    )


def _late(
    needs: Sequence[tuple[int, int, float, int]], slack: float
) -> Iterator[tuple[float, int]]:
    """Serve transfers, given by start, earliest end first; of each busy stretch by how many
    picoseconds the first is late, and its row."""
    clock, arrived, stretch, reported = 0.0, 0, 0, False
    waiting: list[tuple[int, int, float]] = []
    while waiting or arrived < len(needs):
        if not waiting:
            clock = max(clock, needs[arrived][0])
            stretch = arrived
            reported = False
        while arrived < len(needs) and needs[arrived][0] <= clock:
            heappush(waiting, (needs[arrived][1], arrived, needs[arrived][2]))
            arrived += 1
        due, first, left = waiting[0]
        until = needs[arrived][0] if arrived < len(needs) else math.inf
        if clock + left > until:
            heapreplace(waiting, (due, first, left - (until - clock)))
            clock = until
            continue
        heappop(waiting)
        clock += left
        if clock - due > slack + (arrived - stretch) and not reported:
            reported = True
            yield clock - due, first
