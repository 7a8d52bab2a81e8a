"""Operators that only move elements are left out where their readers can do without, and nowhere
else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.efforts import TEST
from tests.support.layered_networks import random_network
from tests.support.networks import npu

import loadmaster as lm
from loadmaster.workloads.frontends.onnx.graph_builder import build_graph
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Role
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import Sizes, Split, choose_split, sizes_for

HEADS, CACHED, WIDTH = 2, 40, 16


def graph_of(
    nodes: list,
    inputs: dict[str, tuple[int, ...]],
    outputs: list[str],
    weights: dict[str, tuple[int, ...]],
) -> Graph:
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    constants = [
        numpy_helper.from_array(np.zeros(shape, np.float32), name)
        for name, shape in weights.items()
    ]
    graph = helper.make_graph(nodes, "net", given, results, constants)
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    return build_graph(model, name="net", source="test", batch=None, dims={}, precision="int8")


def decoder(*, past_is_input: bool = True, twice: bool = False) -> Graph:
    """Scores and weighted sum of one query over a cache that grows by one step; keys are
    transposed."""
    nodes = [
        (
            helper.make_node("Relu", ["old"], ["past"], "make")
            if not past_is_input
            else helper.make_node("Relu", ["old"], ["unused"], "make")
        ),
        helper.make_node("MatMul", ["x", "w"], ["new"], "project"),
        helper.make_node("Concat", ["past", "new"], ["present"], "append", axis=2),
        helper.make_node("Transpose", ["present"], ["keys"], "turn", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["x", "keys"], ["scores"], "score"),
        helper.make_node("MatMul", ["scores", "present"], ["y"], "mix"),
    ]
    if twice:
        nodes.append(helper.make_node("Softmax", ["keys"], ["z"], "look"))
    shape = (1, HEADS, CACHED, WIDTH)
    inputs = {"x": (1, HEADS, 1, WIDTH), "old": shape} | ({"past": shape} if past_is_input else {})
    outputs = ["y", "present", *(["unused"] if past_is_input else []), *(["z"] if twice else [])]
    return graph_of(nodes, inputs, outputs, {"w": (WIDTH, WIDTH)})


def kinds(graph: Graph) -> set[str]:
    return {op.name for op in without_updates(graph).ops}


def test_a_cache_that_is_an_input_grows_in_place() -> None:
    graph = decoder()
    single = without_updates(graph)
    assert kinds(graph) == {"make", "project", "score", "mix"}
    assert single.outputs == ("y", "new", "unused")
    assert any("in place" in note for note in single.notes)
    workload = lower([graph], npu())
    reads = {job.operators[0]: job.reads for job in workload.jobs}
    for operator in ("score", "mix"):
        found = {operand.tensor: operand for operand in reads[operator]}
        # The cache and the new step are the weight operand of the product, which may be fetched
        # several times.
        assert found["net/past"].bytes == HEADS * CACHED * WIDTH
        assert found["net/new"].bytes == HEADS * WIDTH
        assert found["net/past"].role is found["net/new"].role is Role.WEIGHT
    plan = lm.plan([graph], npu(), effort=TEST)
    assert lm.verify(plan) == ()
    assert lm.verify_against(plan, [graph], npu()) == ()


def test_a_cache_that_operators_make_is_copied_into_what_the_network_returns() -> None:
    assert kinds(decoder(past_is_input=False)) == {"make", "project", "append", "score", "mix"}


def test_what_is_no_product_reads_what_a_transposition_makes() -> None:
    assert "turn" in kinds(decoder(twice=True))


@pytest.mark.parametrize(
    ("reader", "left_out"),
    [("Relu", True), ("Softmax", True), ("Flatten", True), ("Reshape", False), ("TopK", False)],
)
def test_a_concatenation_is_made_for_readers_that_cannot_say_what_they_need(
    reader: str, left_out: bool
) -> None:
    nodes = [
        helper.make_node("Relu", ["a"], ["b"], "first"),
        helper.make_node("Concat", ["b", "c"], ["both"], "join", axis=1),
        helper.make_node(
            reader,
            ["both", *(["k"] if reader in ("Reshape", "TopK") else [])],
            ["d", *(["e"] if reader == "TopK" else [])],
            "read",
        ),
        helper.make_node("Neg", ["d"], ["y"], "last"),
    ]
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, n))
        for name, n in (("a", 3), ("c", 5))
    ]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    constants = [
        numpy_helper.from_array(np.array([4, 4] if reader == "Reshape" else [2], np.int64), "k")
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "net", given, results, constants),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    graph = build_graph(model, name="net", source="test", batch=None, dims={}, precision=None)
    assert ("join" not in kinds(graph)) == left_out


def test_tiles_fill_the_arrays_and_are_as_wide_as_the_machine_is_balanced() -> None:
    """100 rows of 4,096 channels to 4,100: tiles are multiples of the arrays' rows, but for the
    last."""
    target = npu(2, 100_000)
    graph = graph_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "wide")],
        {"x": (100, 256)},
        ["y"],
        {"w": (256, 1003)},
    )
    (group,) = fuse(without_updates(graph))
    split = choose_split(group, 100_000, sizes_for(target))
    assert sizes_for(target).step == 8
    assert split.tiles > 1
    widths = [split.part(tile) for tile in range(split.tiles)]
    assert sum(widths) == 1003
    assert all(width % 8 == 0 for width in widths[:-1])
    assert choose_split(group, 100_000, Sizes()).step == 1
    # Parts of a split of the same channels are found by where they begin.
    other = Split(1003, 7, 8)
    for tile in range(split.tiles):
        met = [part for part in range(other.tiles) if split.overlap(tile, other, part)]
        assert list(split.parts_met(tile, other)) == met


def test_a_tile_over_channels_reads_all_of_a_concatenated_input_whose_parts_have_as_many_channels() -> (
    None
):
    nodes = [
        helper.make_node("Relu", ["x"], ["left"], "one"),
        helper.make_node("Neg", ["x"], ["right"], "other"),
        helper.make_node("Concat", ["left", "right"], ["both"], "join", axis=1),
        helper.make_node("Conv", ["both", "w"], ["y"], "convolve"),
    ]
    graph = graph_of(nodes, {"x": (1, 16, 4, 4)}, ["y"], {"w": (16, 32, 1, 1)})
    convolution = fuse(without_updates(graph))[-1]
    assert convolution.by_channel == {"w"}
    workload = lower([graph], npu(1, 1_100))
    tiles = [job for job in workload.jobs if job.operators[0] == "convolve"]
    assert len(tiles) > 1
    for tile in tiles:
        assert {
            operand.tensor: operand.bytes for operand in tile.reads if operand.role is Role.INPUT
        } == {
            "net/left": 256,
            "net/right": 256,
        }


@pytest.mark.parametrize("seed", [387, 392, 400, 413])
def test_what_is_left_out_once_leaves_nothing_more_to_leave_out(seed: int) -> None:
    """Cuts are of the operators that are left; a second look would leave out others."""
    graph = without_updates(lm.load(random_network(seed, length=6).model(), name="random"))
    assert without_updates(graph) is graph
    plan = lm.plan([graph], npu(2, 4096), effort=TEST)
    assert lm.verify(plan) == ()
