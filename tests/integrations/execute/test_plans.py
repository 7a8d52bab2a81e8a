"""Plans compute what their models do, in whatever order they are run: cores, memories, pieces,
bands."""

from collections import defaultdict
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from tests.planning.test_against import moved_ranges, with_box, with_one
from tests.support.efforts import SEPARATE, verified
from tests.support.lowered import cuts_by, planned
from tests.support.networks import npu, staged_machine
from tests.support.random_networks import (
    LAYERS,
    Builder,
    activation,
    attention,
    concatenated,
    random_network,
    shuffled,
)
from tests.support.summed_networks import copying, in_chains, network
from tests.workloads.test_pieces import grid_of

import loadmaster as lm
from loadmaster.workloads.lowering.grid import WHOLE
from loadmaster.workloads.lowering.single_assignment import without_updates


def in_random_pieces(graphs, target, seed):
    """A plan of operators that are whole, or in pieces of random dimensions, for one or two
    mini-batches."""
    generator = np.random.default_rng(seed)

    def cut(form):
        return WHOLE if generator.random() < 0.3 else grid_of(form, generator)

    cuts = [cuts_by(graph, cut) for graph in graphs]
    batches = int(generator.integers(1, 3))
    return planned(lm.lower(graphs, target, cuts=cuts, mini_batches=batches), target)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS, ids=[layer.__name__ for layer in LAYERS])
def test_every_kind_of_operator_whole_and_in_pieces(case, layer):
    one = case(builds=[random_network(seed, (layer,), 2) for seed in range(4)])
    one.holds(in_random_pieces(one.graphs, npu(2, 8192), 5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_networks_in_random_pieces_on_several_cores(case, seed):
    one = case(10 * seed, 10 * seed + 1, 10 * seed + 2)
    machine = npu(1 + seed % 3, (2048, 8192, 65536, 0)[seed])
    one.holds(in_random_pieces(one.graphs, machine, seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_what_the_planner_makes_of_random_networks(case, seed):
    one = case(100 + seed, 200 + seed, length=6)
    one.holds(verified(one.graphs, npu(2, 4096), mini_batches=2))


def copies(graph):
    return sum(op.copies for op in graph.ops)


def chain(rows=48, columns=12):
    """Convolutions of 3 x 3 taps, one after the other."""
    build = Builder(3)
    last = build.input(1, 4, rows, columns)
    for _ in range(3):
        last = build.Relu(build.Conv(last, build.weight(4, 4, 3, 3), pads=[1, 1, 1, 1]))
    build.last = last
    return build


def slow(scratchpad):
    """A machine whose main memory is far away."""
    return npu(2, scratchpad, bandwidth=1e8)


@pytest.mark.slow
def test_bands_of_a_stack_through_a_small_memory(case):
    """A band of each operator at a time, with rows that two bands share, on two cores; addresses
    are used again and again."""
    one = case(builds=[chain()])
    plan = verified(one.graphs, slow(6144))
    bands = [job for job in plan.jobs if job.ranges and job.ranges[2] != (0, 48)]
    assert len(bands) > 40
    assert sum(each.bytes for each in plan.allocations if each.memory == "scratchpad") > 3 * 6144, (
        "addresses are used more than once"
    )
    one.holds(plan)


@pytest.mark.slow
def test_tiles_of_a_stack_through_a_memory_that_is_too_small_for_bands(case):
    """Tiles of rows and columns of one operator after the other; what two stripes share is a piece
    of its own, and may leave the memory."""
    one, machine = case(builds=[chain(40, 40)]), slow(4500)
    plan = verified(one.graphs, machine)
    assert "column tiles" in str(plan.notes)
    assert {
        (job.ranges[2] != (0, 40), job.ranges[3] != (0, 40)) for job in plan.jobs if job.tiles > 9
    } == {(True, True)}
    one.holds(plan)


@pytest.mark.slow
def test_copies_that_are_left_out_are_read_through(case):
    """Parts of a concatenation and transposed operands lie where they were made."""

    def layers(build, x):
        both = concatenated(build, activation(build, x))
        return attention(build, build.Conv(both, build.weight(2, build.shapes[both][1], 1, 1)))

    # Two shuffles may follow one another; some are made: for groups that are no whole rounds.
    builds = [
        *(random_network(seed, (layers,), 1) for seed in range(4)),
        *(random_network(400 + seed, (shuffled,), 2, shape=(1, 6, 4, 3)) for seed in range(8)),
    ]
    one = case(builds=builds)
    found = [copies(graph) - copies(without_updates(graph)) for graph in one.graphs]
    assert min(sum(found[:4]), sum(found[4:])) > 1
    machine = npu(2, 4096)
    one.holds(lm.plan(one.graphs, machine, effort=SEPARATE))
    one.holds(in_random_pieces(one.graphs, machine, 1))


@pytest.mark.slow
def test_a_machine_that_copies_every_operand_first(case):
    one = case(7, length=6)
    plan = verified(one.graphs, staged_machine(20_000), mini_batches=2)
    assert any(copy.name for copy in plan.transfers)
    one.holds(plan)


@pytest.mark.slow
def test_sums_that_chains_of_pieces_add_up(case):
    """Each piece sees its terms alone, adds them to what the one before has left, and the last does
    what follows the sum."""
    one, machine = case(builds=[network(seed)[0] for seed in range(3)]), copying(2)
    cuts = [in_chains(graph, np.random.default_rng(seed)) for seed, graph in enumerate(one.graphs)]
    plan = planned(lm.lower(one.graphs, machine, cuts=cuts, mini_batches=2), machine)
    assert sum(bool(tensor.summed) for tensor in plan.tensors) > 20
    one.holds(plan)


# Running a plan shows what is wrong with it: each wait that keeps two uses of some bytes apart,
# each address, and each part of what a job reads, makes and writes is needed.


MANY = 24
"""Orders in which a plan is run until one shows a fault."""


def some(items, count):
    """So many items, from all over."""
    return list(items[:: max(1, len(items) // count)])[:count]


@pytest.fixture
def small_plan(case):
    one = case(308, 309, length=6)
    return one, verified(one.graphs, npu(2, 4096))


def missed(one, broken):
    """Broken plans that no order shows."""
    return [what for what, plan in broken if not one.faults(plan, MANY)]


@pytest.mark.slow
def test_waits_that_are_dropped_and_addresses_that_are_shared_are_found(small_plan):
    one, plan = small_plan
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
    bands = verified(one.graphs, slow(6144))
    copies = verified(one.graphs, staged_machine(20_000))
    for breaks in WRONG:
        found = [*some(list(breaks(bands)), 4), *some(list(breaks(copies)), 4)]
        assert len(found) > 4, breaks
        assert missed(one, found) == []


def test_terms_that_are_left_out_of_a_sum_are_found(case):
    one, machine = case(builds=[network(4)[0]]), copying(2)
    cuts = [in_chains(one.graphs[0], np.random.default_rng(4))]
    plan = planned(lm.lower(one.graphs, machine, cuts=cuts), machine)
    one.holds(plan)
    found = some(list(other_terms(plan)), 6)
    assert len(found) > 2
    assert missed(one, found) == []


def test_times_are_compared_in_picoseconds_as_by_the_verifier(small_plan):
    one, plan = small_plan
    late = [replace(each, start=each.start + 1e-15) for each in plan.allocations]
    one.holds(replace(plan, allocations=tuple(late)))


def test_jobs_that_wait_for_one_another_are_found(small_plan):
    one, plan = small_plan
    first, *_, last = sorted(plan.jobs, key=lambda job: job.start)
    broken = with_one(plan, "jobs", first, after=(last.name,))
    assert "nodes are in a cycle" in one.faults(broken)[0]


def test_what_differs_is_named(small_plan):
    one, plan = small_plan
    job = next(job for job in plan.jobs if job.reads and "Relu" in job.operators[-1])
    found = one.faults(with_one(plan, "jobs", job, reads=()))
    assert found[0].startswith(f"order 1 of seed 0: job {job.name!r} makes other elements than")
    assert "instead of " in found[0]
    assert any("output " in text and "differs from the whole model's" in text for text in found[1:])
