"""Lowering: what is fused, what is split, and what every mini-batch has of its own."""

from itertools import pairwise

import pytest
from tests.support.cut_networks import convolutions
from tests.support.lowered import cuts_by
from tests.support.networks import GraphBuilder, npu, residual_chain
from tests.support.onnx_builder import int8_graph

from loadmaster.core.errors import PlanError
from loadmaster.workloads.graph import LoopNest, OpClass, TensorKind
from loadmaster.workloads.job import Role
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.grid import WHOLE
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import plain_cuts


def start(name="net"):
    build = GraphBuilder(name)
    build.tensor("x", (4, 8, 8), TensorKind.INPUT)
    return build


def names(fused):
    return [[op.name for op in group.ops] for group in fused]


def test_an_activation_function_joins_its_convolution_and_the_value_between_never_leaves_the_core():
    build = start()
    build.elementwise("relu", build.conv("conv", "x", 4))
    (group,) = fuse(build.graph("relu"))
    assert [op.name for op in group.ops] == ["Conv_conv", "Add_relu"]
    assert [w.tensor for w in group.writes] == ["relu"]
    assert group.nests[0].output == "relu"


def test_a_value_that_others_need_is_still_written():
    build = start()
    build.elementwise("relu", build.conv("conv", "x", 4))
    build.conv("other", "conv", 4)
    fused = fuse(build.graph("relu", "other"))
    assert [w.tensor for w in fused[0].writes] == ["conv", "relu"]


def test_a_residual_sum_joins_the_later_of_its_producers():
    fused = fuse(residual_chain(1))
    assert names(fused) == [["Conv_a0", "Add_relu0"], ["Conv_b0", "Add_sum0"]]
    assert {r.tensor for r in fused[1].reads} == {"relu0", "b0.w", "x"}


def test_gating_needs_no_second_reading_of_its_input():
    build = start()
    build.conv("conv", "x", 4)
    build.elementwise("sigmoid", "conv")
    build.elementwise("swish", "conv", "sigmoid")
    (group,) = fuse(build.graph("swish"))
    assert [w.tensor for w in group.writes] == ["swish"]


def test_a_broadcast_result_is_not_fused_into_the_small_producer():
    build = start()
    build.tensor("mean", (4, 1, 1))
    build.op("ReduceMean", OpClass.REDUCTION, ["x"], "mean")
    build.elementwise("centred", "x", "mean")
    assert names(fuse(build.graph("centred"))) == [["ReduceMean_mean"], ["Add_centred"]]


@pytest.mark.parametrize("op_class", [OpClass.UNKNOWN, OpClass.CONTROL_FLOW])
def test_nothing_joins_an_operator_that_is_not_understood(op_class):
    build = start()
    build.tensor("odd", (4, 8, 8))
    build.op("Odd", op_class, ["x"], "odd")
    build.elementwise("relu", "odd")
    assert len(fuse(build.graph("relu"))) == 2


def test_mini_batches_share_weights_and_nothing_else():
    workload = lower([residual_chain(2)], npu(), mini_batches=3)
    kinds = {
        kind: [t.name for t in workload.tensors if t.kind == kind]
        for kind in ("weight", "input", "activation")
    }
    assert len(kinds["weight"]) == 4
    assert kinds["input"] == ["chain#0/x", "chain#1/x", "chain#2/x"]
    assert len(kinds["activation"]) == len(workload.jobs) == 12
    assert all(
        workload.jobs[b].mini_batch == job.mini_batch for job in workload.jobs for b in job.after
    )


def test_networks_of_one_name_are_told_apart():
    workload = lower([residual_chain(1), residual_chain(1)], npu())
    assert [network.name for network in workload.networks] == ["chain", "chain-2"]
    assert len({job.name for job in workload.jobs}) == len(workload.jobs)


def test_a_tensor_that_is_both_factors_of_a_product_is_fetched_as_each():
    build = GraphBuilder()
    build.tensor("x", (8, 1, 8), TensorKind.INPUT)
    build.tensor("square", (8, 1, 8))
    nest = LoopNest(k=8, c=8, y=8, input="x", weight="x", output="square")
    build.op("MatMul", OpClass.PRODUCT, ["x", "x"], "square", nests=(nest,))
    (job,) = lower([build.graph("square")], npu()).jobs
    assert [operand.role for operand in job.reads] == [Role.INPUT, Role.WEIGHT]


IMAGE = "float[1,4,8,8] x"
WIDE = "Conv<pads=[1, 1, 1, 1]>"


def test_an_operator_larger_than_the_scratchpad_is_cut_over_its_output_channels():
    nodes = f"""
        [conv] c = {WIDE}(x, w)
        [relu] r = Relu(c)
        [next] y = {WIDE}(r, v)
    """
    graph = int8_graph(nodes, IMAGE, "y", "float[64,4,3,3] w, float[4,64,3,3] v")
    workload = lower([graph], npu(scratchpad=4096))
    tiles = [job for job in workload.jobs if job.operators[0] == "conv"]
    assert len(tiles) > 1
    assert [(job.tile, job.tiles) for job in tiles] == [(i, len(tiles)) for i in range(len(tiles))]
    assert sum(job.macs for job in tiles) == graph.ops[0].macs
    assert sum(job.elements for job in tiles) == graph.ops[1].elements
    assert [job.ranges[1][0] for job in tiles] == [0, *(job.ranges[1][1] for job in tiles[:-1])]
    for job in tiles:
        assert sum(operand.bytes for operand in (*job.reads, *job.writes)) <= 4096
    after = next(job for job in workload.jobs if job.operators[0] == "next")
    assert {workload.jobs[b].name for b in after.after} >= {job.name for job in tiles}
    assert sum(operand.bytes for operand in after.reads if operand.role is Role.INPUT) == 64 * 64


def test_a_tile_reads_all_of_what_is_broadcast_over_channels_and_its_share_of_what_is_not():
    nodes = f"""
        c = {WIDE}(x, w)
        m = Mul(c, mask)
        y = Mul(m, scale)
    """
    weights = "float[64,4,3,3] w, float[64,1,1] scale"
    graph = int8_graph(nodes, f"{IMAGE}, float[1,1,8,8] mask", "y", weights)
    tiles = lower([graph], npu(scratchpad=4096)).jobs
    assert len(tiles) > 1
    read = {
        name: [
            o.bytes for job in tiles for o in job.reads if o.tensor.partition("[")[0].endswith(name)
        ]
        for name in ("/mask", "/scale", "/x")
    }
    assert read["/mask"] == [64] * len(tiles)
    assert read["/x"] == [256] * len(tiles)
    assert sum(read["/scale"]) == 64


def test_a_tile_reads_only_the_parts_of_a_cut_tensor_that_hold_its_channels():
    nodes = f"""
        [left] a = {WIDE}(x, w)
        [right] b = {WIDE}(z, v)
        y = Add(b, a)
    """
    weights = "float[64,4,3,3] w, float[64,4,3,3] v"
    graph = int8_graph(nodes, f"{IMAGE}, float[1,4,8,8] z", "y", weights)
    jobs = lower([graph], npu(scratchpad=6000)).jobs
    first = next(job for job in jobs if job.operators[0] == "right")
    assert first.tiles > 1
    parts = [o for job in jobs for o in job.reads if "/a[" in o.tensor]
    assert len([o for o in first.reads if o in parts]) == 1
    assert sum(o.bytes for o in parts) == 64 * 64


def test_an_operator_whose_input_alone_is_too_large_is_left_whole():
    build = start()
    build.conv("conv", "x", 64)
    graph = build.graph("conv")
    assert plain_cuts(graph, fuse(graph), npu(scratchpad=200)) == [WHOLE]


def test_nothing_to_plan_is_an_error():
    with pytest.raises(PlanError, match="no network"):
        lower([], npu())
    with pytest.raises(PlanError, match="mini-batches"):
        lower([residual_chain(1)], npu(), mini_batches=0)
    with pytest.raises(PlanError, match="nothing to plan"):
        lower([start().graph("x")], npu())


def test_an_input_that_bands_share_comes_in_bands_and_every_row_once():
    """Rows that two bands need belong to the first; strides that step over rows leave none out."""
    for rows, strides in ((12, (1,)), (13, (2,))):
        graph = convolutions(rows=rows, strides=strides, skip=False)
        work = lower([graph], npu(), cuts=[cuts_by(graph, lambda form: form.grid({2: 3}))])
        parts = [tensor for tensor in work.tensors if tensor.kind == "input"]
        assert [part.ranges[2] for part in parts] == list(
            pairwise((0, *(part.ranges[2][1] for part in parts)))
        )
        assert parts[-1].ranges[2][1] == rows
        assert sum(part.bytes for part in parts) == graph.tensors["x"].bytes
