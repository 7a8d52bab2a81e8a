"""Plans compute what their models do, in whatever order they are run: cores, memories, pieces,
bands."""

import numpy as np
import pytest
from tests.support.efforts import SEPARATE, TEST
from tests.support.lowered import parts_of
from tests.support.networks import npu, staged_machine
from tests.support.plan_of_jobs import planned
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
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts
from loadmaster.workloads.lowering.single_assignment import without_updates


def in_random_pieces(graphs, target, seed):
    """A plan of operators that are whole, or in pieces of random dimensions, for one or two
    mini-batches."""
    generator = np.random.default_rng(seed)
    cuts = []
    for graph in graphs:
        forms = parts_of(graph).forms
        cuts.append(
            Cuts(
                [
                    WHOLE if form is None or generator.random() < 0.3 else grid_of(form, generator)
                    for form in forms
                ]
            )
        )
    return planned(
        lower(graphs, target, cuts=cuts, mini_batches=int(generator.integers(1, 3))), target
    )


@pytest.mark.parametrize("layer", LAYERS, ids=[layer.__name__ for layer in LAYERS])
def test_every_kind_of_operator_whole_and_in_pieces(case, layer):
    one = case(builds=[random_network(seed, (layer,), 2) for seed in range(4)])
    plan = in_random_pieces(one.graphs, npu(2, 8192), 5)
    assert lm.verify(plan) == ()
    assert one.faults(plan) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_networks_in_random_pieces_on_several_cores(case, seed):
    one = case(10 * seed, 10 * seed + 1, 10 * seed + 2)
    plan = in_random_pieces(one.graphs, npu(1 + seed % 3, (2048, 8192, 65536, 0)[seed]), seed)
    assert lm.verify(plan) == ()
    assert one.faults(plan) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_what_the_planner_makes_of_random_networks(case, seed):
    one = case(100 + seed, 200 + seed, length=6)
    plan = lm.plan(one.graphs, npu(2, 4096), effort=TEST, mini_batches=2)
    assert one.faults(plan) == []


def copies(graph):
    return sum(op.copies for op in graph.ops)


def chain(rows=48, columns=12):
    """Convolutions of 3 x 3 taps, one after the other."""
    build = Builder(3)
    last = build.input(1, 4, rows, columns)
    for _ in range(3):
        last = build.add(
            "Relu", build.add("Conv", last, build.weight(4, 4, 3, 3), pads=[1, 1, 1, 1])
        )
    build.last = last
    return build


def slow(scratchpad):
    """A machine whose main memory is far away."""
    return npu(2, scratchpad).with_memory(0, read_bandwidth=1e8, write_bandwidth=1e8)


@pytest.mark.slow
def test_bands_of_a_stack_through_a_small_memory(case):
    """A band of each operator at a time, with rows that two bands share, on two cores; addresses
    are used again and again."""
    one = case(builds=[chain()])
    plan = lm.plan(one.graphs, slow(6144), effort=TEST)
    bands = [job for job in plan.jobs if job.ranges and job.ranges[2] != (0, 48)]
    assert len(bands) > 40
    assert sum(each.bytes for each in plan.allocations if each.memory == "scratchpad") > 3 * 6144, (
        "addresses are used more than once"
    )
    assert one.faults(plan) == []


@pytest.mark.slow
def test_tiles_of_a_stack_through_a_memory_that_is_too_small_for_bands(case):
    """Tiles of rows and columns of one operator after the other; what two stripes share is a piece
    of its own, and may leave the memory."""
    one, machine = case(builds=[chain(40, 40)]), slow(4500)
    plan = lm.plan(one.graphs, machine, effort=TEST)
    assert any("into tiles" in note for note in plan.notes)
    assert {
        (job.ranges[2] != (0, 40), job.ranges[3] != (0, 40)) for job in plan.jobs if job.tiles > 9
    } == {(True, True)}
    assert lm.verify_against(plan, one.graphs, machine) == ()
    assert one.faults(plan) == []


@pytest.mark.slow
def test_copies_that_are_left_out_are_read_through(case):
    """Parts of a concatenation and transposed operands lie where they were made."""

    def layers(build, x):
        both = concatenated(build, activation(build, x))
        return attention(
            build, build.add("Conv", both, build.weight(2, build.shape(both)[1], 1, 1))
        )

    # Two shuffles may follow one another; some are made: for groups that are no whole rounds.
    builds = [
        *(random_network(seed, (layers,), 1) for seed in range(4)),
        *(random_network(400 + seed, (shuffled,), 2, shape=(1, 6, 4, 3)) for seed in range(8)),
    ]
    one = case(builds=builds)
    found = [copies(graph) - copies(without_updates(graph)) for graph in one.graphs]
    assert min(sum(found[:4]), sum(found[4:])) > 1
    assert one.faults(lm.plan(one.graphs, npu(2, 4096), effort=SEPARATE)) == []
    assert one.faults(in_random_pieces(one.graphs, npu(2, 4096), 1)) == []


@pytest.mark.slow
def test_a_machine_that_copies_every_operand_first(case):
    one = case(7, length=6)
    plan = lm.plan(one.graphs, staged_machine(20_000), mini_batches=2, effort=TEST)
    assert any(copy.name for copy in plan.transfers)
    assert one.faults(plan) == []


def test_sums_that_chains_of_pieces_add_up(case):
    """Each piece sees its terms alone, adds them to what the one before has left, and the last does
    what follows the sum."""
    one, machine = case(builds=[network(seed)[0] for seed in range(3)]), copying(2)
    cuts = [in_chains(graph, np.random.default_rng(seed)) for seed, graph in enumerate(one.graphs)]
    plan = planned(lower(one.graphs, machine, cuts=cuts, mini_batches=2), machine)
    assert sum(bool(tensor.summed) for tensor in plan.tensors) > 20
    assert lm.verify(plan) == ()
    assert one.faults(plan) == []
