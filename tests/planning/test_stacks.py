"""Stacks of bands: the choice against exhaustive search, on the model and on what plans really
move."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.support.cut_networks import convolutions
from tests.support.efforts import SEPARATE, verified
from tests.support.lowered import joint_problem
from tests.support.networks import npu
from tests.support.random_networks import Builder

import loadmaster as lm
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.cutting.band_cuts import (
    COLUMN_TILES,
    StackModel,
    has_wide_bands,
    stacked,
    stacks_of_bands,
)
from loadmaster.planning.cutting.banding import AxisView, Stack, way_costs
from loadmaster.planning.joint.problem import JointOptions
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork


def machine(scratchpad, buffer=16 * 1024):
    return npu(2, scratchpad, buffer, bandwidth=1e8)


def network_of(graph, target):
    return AxisView(DivisibleNetwork.of(graph, target))


def random_network(generator, most):
    strides = tuple(generator.choice([1, 1, 2], generator.integers(2, most + 1)).tolist())
    rows, channels = int(generator.choice([12, 20, 33])), int(generator.choice([4, 8, 16]))
    return convolutions(
        rows=rows, channels=channels, strides=strides, skip=bool(generator.integers(2))
    )


def model_of(network, target):
    return StackModel(network, target, network.network.plain)


def cuts_of(network, stacks):
    return stacked(network, stacks, network.network.plain)


def moved(target, network, stacks):
    """Bytes over the main link when stacks are run in their order and what stays is chosen along
    it."""
    workload = lm.lower([network.network.source], target, cuts=[cuts_of(network, stacks)])
    problem = joint_problem(workload, target)
    found = problem.evaluate(np.arange(len(workload.jobs)), JointOptions())
    table, placement = problem.table, problem.decisions(found)[1]
    crossing = table.moved[np.arange(len(table.moved)), found.run.core[table.operand_job]]
    return int(crossing[placement.used[0]].sum()) + sum(
        workload.tensors[copy.tensor].bytes for copy in placement.copies
    )


def every_choice(network):
    """All stacks, each in two, four or as many bands as rows; one operator may be in one band."""
    count = len(network.network.fused)
    for ends in itertools.product([False, True], repeat=count - 1):
        bounds = [0, *(number + 1 for number, end in enumerate(ends) if end), count]
        spans = list(itertools.pairwise(bounds))
        options = [
            [
                bands
                for bands in dict.fromkeys((1, 2, 4, network.extent(last - 1)))
                if bands > 1 or last - first == 1
            ]
            for first, last in spans
        ]
        for bands in itertools.product(*options):
            yield tuple(
                Stack(first, last, number)
                for (first, last), number in zip(spans, bands, strict=True)
            )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_chosen_stacks_move_hardly_more_than_the_best_of_all_stacks(seed):
    generator = np.random.default_rng(100 + seed)
    target = machine(int(generator.choice([2_000, 6_000])))
    network = network_of(random_network(generator, 3), target)
    least = min(moved(target, network, stacks) for stacks in every_choice(network))
    rooms = [int(target.fast.capacity / part) for part in (1, 1.25, 2)]
    model = model_of(network, target)
    chosen = [*model.best(rooms, pipelined=False), *model.best(rooms, pipelined=True)]
    assert min(moved(target, network, choice.stacks) for choice in chosen) <= 1.05 * least


@pytest.mark.slow
def test_stacks_move_about_what_the_model_says():
    """In bands and in stripes, pipelined or not, for rooms from a few rows to whole results: when
    pieces run in their order, and what stays is chosen greedily."""
    ratios = []
    for seed, scratchpad in itertools.product(range(6), (1_500, 4_000, 12_000)):
        target = machine(scratchpad)
        network = network_of(random_network(np.random.default_rng(seed), 6), target)
        model = model_of(network, target)
        for pipelined, column_tiles in itertools.product((False, True), ((), (2, 4))):
            (choice,) = model.best([scratchpad], pipelined=pipelined, column_tiles=column_tiles)
            ratios.append(moved(target, network, choice.stacks) / choice.bytes)
    ratios.sort()
    assert ratios[0] > 0.8
    assert ratios[3 * len(ratios) // 4] < 1.08
    assert ratios[-1] < 1.5


def test_tiles_of_rows_and_columns_move_less_where_bands_are_too_wide():
    """Bands of one row of all three operators exceed the scratchpad; tiles do not, and only their
    halos leave it."""
    target = machine(4_000)
    graph = convolutions(rows=64, channels=8, strides=(1, 1, 1), skip=False)
    network = network_of(graph, target)
    assert has_wide_bands(network, 4_000)
    model = model_of(network, target)
    bands, tiles = (
        model.best([4_000], column_tiles=column_tiles)[0].stacks
        for column_tiles in ((), COLUMN_TILES)
    )
    assert max(stack.column_tiles for stack in tiles) > 1
    assert moved(target, network, tiles) < 0.7 * moved(target, network, bands)


def test_few_pieces_leave_cores_idle_where_nothing_runs_beside_them():
    target = npu(4, 100_000)
    network = network_of(convolutions(rows=32, channels=8, strides=(1, 1), skip=False), target)
    costs = way_costs(network, target)[0]
    ways = zip(costs.bands, costs.channels, costs.alone / costs.beside, strict=True)
    ratio = {bands: ratio for bands, channels, ratio in ways if channels == 1}
    assert ratio[1] > 3
    assert ratio[2] > 1.3
    assert ratio[32] < 1.2


def test_what_exceeds_a_buffer_crosses_its_port_as_often_as_the_cost_model_says():
    target = machine(100_000, 2_000)
    graph = convolutions(rows=16, channels=64, strides=(1,), skip=False)
    network = network_of(graph, target)
    costs, workload = way_costs(network, target)[0], lm.lower([graph], target)
    table = job_table(workload, target)
    moved = table.moved[(table.operand_job == 0) & ~table.operand_write, 0]
    sizes = np.array([operand.bytes for operand in workload.jobs[0].reads])
    assert (costs.bands[0], costs.channels[0]) == (1, 1)
    assert costs.refill[0] == pytest.approx(moved / sizes)
    assert costs.refill[0].max() > 1
    assert (costs.refill.min(axis=0) == 1).all()


def test_an_operator_whose_weights_exceed_the_memory_is_cut_over_channels_and_bands():
    """Its input would come in for every part of the channels, or its weights for every band: parts
    and bands together move less."""
    target = machine(16_000, 2_000)
    graph = convolutions(rows=16, channels=64, strides=(1,), skip=False)
    network = network_of(graph, target)
    stacks = model_of(network, target).best([16_000])[0].stacks
    assert stacks[0].channels > 1
    assert stacks[0].bands > 1
    rows = [(replace(stacks[0], channels=1, bands=bands),) for bands in (2, 4, 8, 16)]
    assert moved(target, network, stacks) < 0.7 * min(moved(target, network, own) for own in rows)
    cuts = cuts_of(network, stacks)
    assert sorted(cuts.steps) == [(0, tile) for tile in range(cuts.cuts[0].tiles)]


# Networks that are cut into bands: those for which the fast memory is not ample.


TARGET = npu(scratchpad=16 * 1024)


def test_only_networks_that_need_it_are_cut_into_bands_and_all_their_pieces_are_made():
    large, small = (DivisibleNetwork.of(convolutions(rows=rows), TARGET) for rows in (64, 6))
    ways = list(
        stacks_of_bands(
            [large, small], [Cuts(large.plain), Cuts(small.plain)], TARGET, lambda: False
        )
    )
    assert ways
    for _, (cut, left) in ways:
        assert sum(one.tiles for one in cut.cuts) > len(large.fused)
        assert list(left.cuts) == list(small.plain)
        for cuts in (cut, left):
            pieces = itertools.chain.from_iterable(
                ((number, tile) for tile in range(one.tiles))
                for number, one in enumerate(cuts.cuts)
            )
            assert sorted(cuts.steps) == sorted(pieces)


def test_what_is_more_than_ample_changes_nothing():
    """A machine with more memory is offered what suits one for which less is ample."""
    network = DivisibleNetwork.of(convolutions(rows=16), TARGET)
    offered = [
        [
            [list(own.cuts) for own in cuts]
            for _, cuts in stacks_of_bands(
                [network], [Cuts(network.plain)], npu(scratchpad=size), lambda: False
            )
        ]
        for size in (16 * 1024, 64 * 1024, 1024 * 1024)
    ]
    assert offered[0]
    assert offered[0] == offered[1] == offered[2]


def test_bands_of_what_has_more_rows_than_loops_are_planned():
    """A transposed convolution that doubles its rows: a band of a single one would have nothing to
    do."""
    build = Builder(0)
    x = build.ConvTranspose(
        build.input(1, 16, 3, 1), build.weight(16, 2, 3, 3), strides=[2, 2], pads=[0, 0, 1, 1]
    )
    graph = lm.load(build.model(build.Relu(x)), precision="int8")
    verified([graph], npu(3, 300), effort=SEPARATE)
