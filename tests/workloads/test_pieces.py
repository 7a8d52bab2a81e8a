"""Random graphs in random pieces against the whole: a piece that sees its ranges alone makes its
part of the result, bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from tests.support.cut_networks import convolutions
from tests.support.lowered import parts_of
from tests.support.networks import npu
from tests.support.onnx_builder import model
from tests.support.pieces_reference import Network as Runs
from tests.support.pieces_reference import piece
from tests.support.plan_of_jobs import planned
from tests.support.random_networks import (
    Builder,
    attention,
    concatenated,
    convolution,
    expanded,
    folded,
    gathered,
    normalised,
    padded,
    pooling,
    residual,
    resized,
    scaled,
    shuffled,
    sliced,
    transposed,
)
from tests.support.recomputed import Bands, in_independent_bands, recomputing

import loadmaster as lm
from loadmaster.planning.cutting.banding import Network
from loadmaster.workloads.frontends.onnx.graph_builder import build_graph
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.grid import Divisible, Grid, divisible, needed_boxes
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import WHOLE

LAYERS = (
    *(
        convolution,
        transposed,
        pooling,
        resized,
        concatenated,
        residual,
        scaled,
        expanded,
        padded,
        sliced,
        normalised,
        folded,
        shuffled,
        attention,
        gathered,
    ),
)


def network(
    seed: int, layers=LAYERS, length: int = 4, shape: tuple[int, ...] = ()
) -> tuple[Builder, onnx.ModelProto, Graph]:
    build = Builder(seed)
    last = build.input(
        *(shape or (build.choose(1, 2), build.choose(2, 4), build.choose(3, 5), build.choose(3, 4)))
    )
    for _ in range(length):
        following = build.choose(*layers)(build, last)
        # Sizes stay those that a naive evaluation bears.
        last = following if np.prod(build.shape(following)) <= 1500 else last
    model = build.model(build.add("Relu", last))
    return (
        build,
        model,
        build_graph(model, name="random", source="test", batch=None, dims={}, precision=None),
    )


def grid_of(form: Divisible, generator: np.random.Generator) -> Grid:
    axes = generator.permutation(form.axes)[: generator.integers(1, 3)].tolist()
    return form.grid({axis: int(generator.integers(2, 5)) for axis in axes})


def check(seed: int, build: Builder, model: onnx.ModelProto, graph: Graph) -> int:
    """Every piece of every operator that can be cut, and the number of these."""
    runs, values = Runs(model), build.values
    cut = 0
    for group in fuse(graph):
        form = divisible(graph, group)
        if form is None:
            continue
        cut += 1
        grid = grid_of(form, build.generator)
        for storage in form.uses:
            several = needed_boxes(form, graph, storage, np.array(grid.boxes, dtype=np.int64))
            assert several.tolist() == [
                [list(own) for own in form.needed(graph, storage, box)] for box in grid.boxes
            ], (seed, storage)
        count = np.zeros(form.shape, int)
        for box in grid.boxes:
            index = tuple(slice(first, last) for first, last in box)
            count[index] += 1
            found = piece(runs, graph, group, form, box, values, build.generator)
            for write in group.writes:
                np.testing.assert_allclose(
                    found[write.tensor][index],
                    values[write.tensor][index],
                    1e-4,
                    1e-5,
                    err_msg=f"{seed} {group.main.kind} {box}",
                )
        assert (count == 1).all(), "every element is made once"
    return cut


@pytest.mark.parametrize("layer", LAYERS, ids=[layer.__name__ for layer in LAYERS])
def test_a_piece_of_every_layer_needs_its_ranges_only(layer) -> None:
    assert sum(check(seed, *network(seed, (layer,), 1)) for seed in range(4))


@pytest.mark.parametrize("seed", range(12))
def test_pieces_of_random_graphs_need_their_ranges_only(seed: int) -> None:
    build, model, graph = network(100 + seed)
    assert check(seed, build, model, graph)
    assert check(seed, build, model, without_updates(graph)), "the same where copies are left out"


def test_products_read_what_was_moved_where_it_lies() -> None:
    """Attention reads transposed keys, and convolutions the parts of a concatenation: neither is
    copied."""
    left_out = 0
    for seed in range(20):
        build, model, graph = network(300 + seed, (attention, concatenated, convolution), 3)
        single = without_updates(graph)
        left_out += len(graph.ops) - len(single.ops)
        assert check(seed, build, model, single)
        workload = lower([graph], npu())
        assert lm.verify(planned(workload, npu())) == ()
    assert left_out > 20


def test_convolutions_read_shuffled_channels_where_they_lie() -> None:
    """What a piece reads is enough, also where two shuffles follow one another. Some are made: for
    groups that are no whole rounds."""
    left_out = 0
    for seed in range(20):
        build, model, graph = network(400 + seed, (shuffled,), 2, (1, 6, 4, 3))
        single = without_updates(graph)
        left_out += sum(op.copies for op in graph.ops) - sum(op.copies for op in single.ops)
        assert check(seed, build, model, single)
        workload = lower([graph], npu())
        assert lm.verify(planned(workload, npu())) == ()
    assert left_out > 5


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_random_graphs_in_random_pieces_hold(seed: int) -> None:
    """What the verifiers work out by themselves, from the windows and from the model, agrees with
    what pieces read."""
    build, _, graph = network(200 + seed)
    forms = parts_of(graph).forms
    cuts = Cuts([WHOLE if form is None else grid_of(form, build.generator) for form in forms])
    workload = lower([graph], npu(), cuts=[cuts])
    assert any(job.ranges for job in workload.jobs)
    assert sum(job.macs for job in workload.jobs) >= graph.macs
    plan = planned(workload, npu())
    assert lm.verify(plan) == ()
    # The bounds are those of these pieces, and may be higher than those of the network.
    assert {violation.rule for violation in lm.verify_against(plan, [graph], npu())} <= {"bound"}


def test_plans_of_random_graphs_in_bands_that_recompute_their_halos_hold() -> None:
    """The verifiers agree with what such pieces make, own and read; and rows are made twice in many
    of them."""
    again = 0
    layers = (convolution, convolution, convolution, residual, pooling, resized, transposed)
    for seed in range(12):
        build, _, graph = network(500 + seed, layers, 5, (1, 1, 28, 24))
        workload = lower([graph], npu(), cuts=[in_independent_bands(graph, build.generator)])
        again += sum(bool(job.owns) for job in workload.jobs)
        plan = planned(workload, npu())
        assert lm.verify(plan) == (), seed
        assert {violation.rule for violation in lm.verify_against(plan, [graph], npu())} <= {
            "bound"
        }, seed
    assert again > 40


def test_bands_that_recompute_their_halos_do_not_wait_for_one_another() -> None:
    """Each of three convolutions of 3 x 3 makes two rows less than the one before, and a band reads
    results of its own number only."""
    graph = convolutions(rows=24, strides=(1, 1, 1), skip=True)
    fused = fuse(without_updates(graph))
    seen = Network(graph, fused, [divisible(graph, group) for group in fused])
    workload = lower(
        [graph], npu(), cuts=[recomputing(seen, [Bands(0, 4, 3, abreast=2)], [WHOLE] * 4)]
    )
    middle = [job for job in workload.jobs if job.tile == 1]
    assert [job.ranges[2] for job in middle] == [(5, 19), (6, 18), (7, 17), (8, 16)]
    assert [job.owns[2] for job in middle if job.owns] == [(11, 19), (10, 18), (9, 17)]
    assert {
        (job.tile, workload.jobs[before].tile) for job in workload.jobs for before in job.after
    } == {(0, 0), (1, 1), (2, 2)}
    assert [job.tile for job in workload.jobs] == [0, 1] * 4 + [2] * 4


def test_what_is_whole_reads_all_that_it_touches_of_parts() -> None:
    """A pool that needs eleven of twelve rows is said to touch all; so it does where a piece of
    another operator has cut its operand, whatever dimensions it might be cut along itself."""
    nodes = ["a = Relu(x)", "p = MaxPool<kernel_shape=[3,3], strides=[2,2]>(x)"]
    graph = lm.load(model(nodes, {"x": (1, 4, 12, 6)}, ["a", "p"]))
    relu, pool = (divisible(graph, group) for group in fuse(graph))
    assert relu is not None
    assert pool is not None
    cuts = [Cuts([relu.grid({2: 2}), pool.grid({})])]
    job = lower([graph], lm.target("edge-npu"), cuts=cuts).jobs[-1]
    touched = graph.ops[-1].reads[0].bytes
    assert [operand.bytes for operand in job.reads] == [touched // 2, touched // 2]
