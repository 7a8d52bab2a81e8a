"""Programs show what is wrong with a plan: each wait that keeps two uses of some bytes apart, and
each address, is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import pytest
from tests.support.c_programs import PLAIN, THREAD
from tests.support.efforts import TEST
from tests.support.networks import npu

import loadmaster as lm
from loadmaster.integrations.c_program.addresses import Addresses
from loadmaster.planning.plan import Plan
from loadmaster.planning.plan_records import PlannedAllocation, PlannedJob, PlannedTransfer

DELAYS = [["--jitter", str(seed), "--engines", "50"] for seed in range(1, 25)]
"""An engine for every copy, so that no order but the plan's keeps copies apart. A busy machine may
need more seeds to show a fault."""


@dataclass(frozen=True)
class Use:
    """Bytes [first, last) of a memory that a job or copy reads or writes."""

    memory: str
    first: int
    last: int
    writes: bool

    def collides(self, other: Use) -> bool:
        return (
            self.memory == other.memory
            and self.first < other.last
            and other.first < self.last
            and (self.writes or other.writes)
        )


def accesses(plan: Plan) -> Iterator[tuple[PlannedJob | PlannedTransfer, str, str, bool]]:
    """What every job and copy does to tensors: which one, in which memory, and whether it writes
    it."""
    for job in plan.jobs:
        yield from (
            (job, operand.tensor, operand.memory, writes)
            for writes, each in ((False, job.reads), (True, job.writes))
            for operand in each
        )
    for copy in plan.transfers:
        if copy.name:
            yield from (
                (copy, copy.tensor, memory, writes)
                for writes, memory in ((False, copy.source), (True, copy.destination))
            )


def uses(plan: Plan) -> dict[str, list[Use]]:
    """What every job and copy does to the memories."""
    addresses = Addresses(plan)
    found: dict[str, list[Use]] = defaultdict(list)
    for step, tensor, memory, writes in accesses(plan):
        first = addresses.address(tensor, memory, step.start, step.end)
        found[step.name].append(Use(memory, first, first + addresses.tensors[tensor].bytes, writes))
    return found


def waits(plan: Plan) -> dict[str, set[str]]:
    """What every job and copy comes after at once: what it waits for, and the job before it on its
    core."""
    found = {
        record.name: set(record.after)
        for record in (*plan.jobs, *(each for each in plan.transfers if each.name))
    }
    for core in plan.target.cores:
        own = sorted((job for job in plan.jobs if job.core == core.name), key=lambda job: job.start)
        for before, after in pairwise(own):
            found[after.name].add(before.name)
    return found


def reached(after: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in after[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def needed_waits(plan: Plan) -> Iterator[tuple[str, str]]:
    """Waits of a task for another without which nothing would keep apart what both do to some
    bytes."""
    used, after = uses(plan), waits(plan)
    for record in (*plan.jobs, *plan.transfers):
        for before in record.after:
            without = {
                name: own - {before} if name == record.name else own for name, own in after.items()
            }
            on_core = before in waits(replace_after(plan, record.name, before))[record.name]
            collides = any(mine.collides(its) for mine in used[record.name] for its in used[before])
            if collides and not on_core and before not in reached(without, record.name):
                yield record.name, before


def replace_after(plan: Plan, name: str, before: str) -> Plan:
    """The plan without one wait."""

    def changed(record):
        return (
            replace(record, after=tuple(each for each in record.after if each != before))
            if record.name == name
            else record
        )

    return replace(
        plan, jobs=tuple(map(changed, plan.jobs)), transfers=tuple(map(changed, plan.transfers))
    )


def users(plan: Plan, place: PlannedAllocation, *, writers: bool = False) -> set[str]:
    """What uses a tensor while it has this place, or writes it there."""
    return {
        step.name
        for step, tensor, memory, writes in accesses(plan)
        if (tensor, memory) == (place.tensor, place.memory)
        and place.start <= step.start
        and step.end <= place.end
        and writes >= writers
    }


def moved_addresses(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """One thing at a time is moved to where another lies that is in use at the same time: neither
    is over when the other is written.

    But for what a job reads and what it writes: jobs of the program load all that they read before
    they write anything.
    """
    after = waits(plan)

    def over(one: PlannedAllocation, other: PlannedAllocation) -> bool:
        """Whether all that uses one is over, in the order of the plan, when the other is
        written."""
        return all(
            users(plan, one) <= reached(after, writer)
            for writer in users(plan, other, writers=True)
        )

    fast = [each for each in plan.allocations if each.memory == "scratchpad" and each.bytes]
    handed_on = {
        frozenset((mine.tensor, its.tensor))
        for job in plan.jobs
        for mine in job.reads
        for its in job.writes
    }
    for one, other in combinations(fast, 2):
        apart = (
            one.tensor != other.tensor and frozenset((one.tensor, other.tensor)) not in handed_on
        )
        if (
            apart
            and max(one.start, other.start) < min(one.end, other.end)
            and not over(one, other)
            and not over(other, one)
        ):
            moved = replace(one, offset=other.offset)
            yield (
                f"{one.tensor} onto {other.tensor}",
                replace(
                    plan, allocations=tuple(moved if a is one else a for a in plan.allocations)
                ),
            )


def some(items: Sequence, count: int) -> list:
    """So many items, from all over."""
    return list(items[:: max(1, len(items) // count)])[:count]


@pytest.fixture
def planned(case):
    one = case(304, 305, length=6)
    return one, lm.plan(one.graphs, npu(2, 4096), effort=TEST)


@pytest.mark.slow
def test_a_wait_that_is_dropped_is_a_race(planned) -> None:
    one, plan = planned
    found = list(needed_waits(plan))
    assert len(found) > 4
    assert one.faults(plan, one.program(plan), THREAD, DELAYS[:1]) == [], "the plan itself is right"
    for name, before in some(found, 8):
        broken = replace_after(plan, name, before)
        assert one.faults(broken, one.program(broken), THREAD, DELAYS), (
            f"{name} does not wait for {before}, and nothing shows it"
        )


@pytest.mark.slow
def test_an_address_that_is_moved_spoils_what_lies_there(planned) -> None:
    one, plan = planned
    found = list(moved_addresses(plan))
    assert len(found) > 4
    missed = []
    for what, broken in some(found, 6):
        assert lm.verify(broken)
        if not (
            one.faults(broken, one.program(broken), PLAIN, DELAYS)
            or one.faults(broken, one.program(broken), THREAD, DELAYS)
        ):
            missed.append(what)
    # What overwrites something may happen to be equal to it.
    assert len(missed) <= 1, f"{missed}, and nothing shows them"
