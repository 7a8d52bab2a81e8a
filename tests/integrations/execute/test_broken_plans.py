"""Running a plan shows what is wrong with it: each wait that keeps two uses of some bytes apart,
each address, and each part of what a job reads, makes and writes is needed."""

from collections import defaultdict
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from tests.integrations.execute.test_plans import chain, slow
from tests.planning.test_mutations import moved_ranges, with_box, with_one
from tests.support.efforts import TEST
from tests.support.networks import npu, staged_machine
from tests.support.plan_of_jobs import planned as planned_jobs
from tests.support.summed_networks import copying, in_chains, network

import loadmaster as lm
from loadmaster.workloads.lowering.instantiate import lower

MANY = 24
"""Orders in which a plan is run until one shows a fault."""


def some(items, count):
    """So many items, from all over."""
    return list(items[:: max(1, len(items) // count)])[:count]


@pytest.fixture
def planned(case):
    one = case(308, 309, length=6)
    return one, lm.plan(one.graphs, npu(2, 4096), effort=TEST)


def missed(one, broken):
    """Broken plans that no order shows."""
    return [what for what, plan in broken if not one.faults(plan, MANY)]


@pytest.mark.slow
def test_waits_that_are_dropped_and_addresses_that_are_shared_are_found(planned):
    one, plan = planned
    assert one.faults(plan, MANY) == [], "the plan itself is right"
    loose = replace(plan, jobs=tuple(replace(job, after=()) for job in plan.jobs))
    for job in some(plan.jobs, 8):
        readers = [each for each in plan.jobs if job.name in each.after and each.core != job.core]
        for reader in readers[:1]:
            alone = tuple(name for name in reader.after if name != job.name)
            made = {operand.tensor for operand in job.writes}
            if any(operand.tensor in made for operand in reader.reads):
                assert one.faults(with_one(plan, "jobs", reader, after=alone), MANY), reader.name
    assert one.faults(loose, MANY)
    heap = [replace(a, offset=0) if a.memory == "scratchpad" else a for a in plan.allocations]
    assert one.faults(replace(plan, allocations=tuple(heap)), MANY)


def without_an_operand(plan):
    for job in plan.jobs:
        for operand in job.reads:
            reads = tuple(each for each in job.reads if each is not operand)
            yield f"{job.name} without {operand.tensor}", with_one(plan, "jobs", job, reads=reads)


def shorter_pieces(plan):
    """One element fewer along a dimension of what a piece makes."""
    for job in plan.jobs:
        for ranges in moved_ranges(job.ranges):
            yield f"{job.name} makes {ranges}", with_one(plan, "jobs", job, ranges=ranges)


def smaller_boxes(plan):
    """A piece reads an element less along a dimension of an activation."""
    made = {tensor.name: tensor for tensor in plan.tensors if tensor.producer}
    for job in plan.jobs:
        for operand in job.reads if job.ranges else ():
            box = operand.ranges or (made[operand.tensor].ranges if operand.tensor in made else ())
            for ranges in moved_ranges(box):
                what = f"{job.name} reads {ranges} of {operand.tensor}"
                yield what, with_box(plan, job, operand, ranges)


def swapped_parts(plan):
    """Two parts of a storage, as large as each other, say that they are one another."""
    alike = defaultdict(list)
    for each in plan.tensors:
        if each.ranges:
            alike[each.network, each.storage, each.mini_batch, each.bytes].append(each)
    pairs = [pair for parts in alike.values() for pair in combinations(parts, 2)]
    for one, other in some(pairs, 8):
        ranges = {one.name: other.ranges, other.name: one.ranges}
        tensors = (replace(t, ranges=ranges.get(t.name, t.ranges)) for t in plan.tensors)
        yield f"{one.name} and {other.name}", replace(plan, tensors=tuple(tensors))


def fewer_operators(plan):
    """The last operator of a job is not run."""
    for job in plan.jobs:
        if len(job.operators) > 1:
            yield job.name, with_one(plan, "jobs", job, operators=job.operators[:-1])


def shorter_copies(plan):
    for copy in plan.transfers:
        if copy.name:
            yield copy.name, with_one(plan, "transfers", copy, bytes=copy.bytes // 2)


def other_terms(plan):
    """A piece of a sum leaves out the first of its terms."""
    for job in plan.jobs:
        if job.summed and job.summed[1] - job.summed[0] > 1:
            first, last = job.summed
            yield job.name, with_one(plan, "jobs", job, summed=(first + 1, last))


WRONG = (
    without_an_operand,
    smaller_boxes,
    shorter_pieces,
    swapped_parts,
    fewer_operators,
    shorter_copies,
)


@pytest.mark.slow
def test_wrong_pieces_and_copies_are_found(case):
    """In bands of a stack, and on a machine that copies every operand first."""
    one = case(builds=[chain()])
    bands = lm.plan(one.graphs, slow(6144), effort=TEST)
    copies = lm.plan(one.graphs, staged_machine(20_000), effort=TEST)
    for breaks in WRONG:
        found = [*some(list(breaks(bands)), 8), *some(list(breaks(copies)), 8)]
        assert len(found) > 4, breaks
        assert missed(one, found) == []


def test_terms_that_are_left_out_of_a_sum_are_found(case):
    one, machine = case(builds=[network(4)[0]]), copying(2)
    plan = planned_jobs(
        lower(one.graphs, machine, cuts=[in_chains(one.graphs[0], np.random.default_rng(4))]),
        machine,
    )
    assert one.faults(plan) == []
    found = some(list(other_terms(plan)), 6)
    assert len(found) > 2
    assert missed(one, found) == []


def test_jobs_that_wait_for_one_another_are_found(planned):
    one, plan = planned
    first, *_, last = sorted(plan.jobs, key=lambda job: job.start)
    broken = with_one(plan, "jobs", first, after=(last.name,))
    assert "nodes are in a cycle" in one.faults(broken)[0]


def test_what_differs_is_named(planned):
    one, plan = planned
    job = next(job for job in plan.jobs if job.reads and "Relu" in job.operators[-1])
    found = one.faults(with_one(plan, "jobs", job, reads=()))
    assert found[0].startswith(f"order 1 of seed 0: job {job.name!r} makes other elements than")
    assert "instead of " in found[0]
    assert any("output " in text and "differs from the whole model's" in text for text in found[1:])
