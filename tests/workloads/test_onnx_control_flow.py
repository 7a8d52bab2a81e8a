"""Control flow that is known before the first inference is planned as the operators it runs."""

import numpy as np
import pytest
from tests.support.onnx_builder import (
    body,
    classes,
    constants,
    either,
    graph_of,
    model,
    node,
    reads,
    shapes,
)

import loadmaster as lm
from loadmaster.workloads.graph import OpClass

WEIGHTS = constants(w1=np.zeros((8, 4)), w2=np.zeros((8, 6)))


def choice(condition):
    branches = (body(f"[product] r = MatMul(x, {weight})", "", "r") for weight in ("w1", "w2"))
    return either(condition, "y", *branches, "if")


@pytest.mark.parametrize(("value", "macs", "width"), [(True, 32, 4), (False, 48, 6)])
def test_a_branch_whose_condition_is_constant_is_taken(value, macs, width):
    weights = [*WEIGHTS, *constants(c=value)]
    graph = graph_of([choice("c")], "float[1,8] x", "y", weights)
    assert (graph.macs, graph.tensors["y"].shape, graph.subgraph_ops) == (macs, (1, width), {})
    assert [op.name for op in graph.ops if op.macs] == ["if/product"]


@pytest.mark.parametrize(("length", "rank"), [(4, 2), (8, 3)])
def test_a_branch_that_shapes_decide_is_taken(length, rank):
    """As torch writes ``squeeze`` of a dimension that is symbolic."""
    nodes = [
        """
            p = Conv<kernel_shape=[4], strides=[4]>(x, w)
            shape = Shape(p)
            length = Gather(shape, two)
            known = Equal(length, one)
        """,
        either(
            "known",
            "y",
            body("s = Squeeze(p, axis)", "", "s"),
            body("i = Identity(p)", "", "i"),
        ),
    ]
    weights = constants(w=np.zeros((8, 1, 4)), two=2, one=1, axis=[2])
    graph = graph_of(
        nodes,
        "float[batch,1,length] x",
        "y",
        weights,
        options={"batch": 2, "dims": {"length": length}},
    )
    assert graph.tensors["y"].shape == (2, 8, length // 4)[:rank]
    assert graph.macs == 2 * 8 * 4 * (length // 4)


def test_a_branch_that_a_value_decides_stays_one_operator():
    inputs = "float[1,8] x, bool c"
    weights = [WEIGHTS[0], *constants(w2=np.zeros((8, 4)))]
    graph = graph_of([choice("c")], inputs, "y", weights)
    assert classes(graph) == "control-flow"
    assert graph.subgraph_ops == {"MatMul": 2}


def loop(count, condition):
    """A product with a weight of the body's own, each result kept as a row."""
    inner = body(
        """
            b = MatMul(a, v)
            on = Identity(go)
            row = Identity(b)
        """,
        "int64 i, bool go, float[1,8] a",
        "on, b, row",
        constants(v=np.zeros((8, 8))),
    )
    return node("Loop", [count, condition, "x"], ["y", "rows"], name="loop", body=inner)


@pytest.mark.parametrize("condition", ["", "t"])
@pytest.mark.parametrize("opset", [11, 21])
def test_a_loop_of_known_count_is_so_many_bodies(condition, opset):
    weights = constants(n=10, t=True)
    graph = graph_of([loop("n", condition)], "float[1,8] x", "y, rows", weights, opset=opset)
    assert graph.macs == 10 * 8 * 8
    assert shapes(graph, "y rows") == "1x8 10x1x8"
    weight = {op.nests[0].weight for op in graph.ops if op.macs}
    assert len(weight) == 1
    assert graph.tensors[weight.pop()].bytes == 4 * 64


def test_a_loop_that_may_end_early_stays_one_operator():
    graph = graph_of(
        [loop("n", "t")], "float[1,8] x, bool t", "y", constants(n=10), value_info="float[1,8] y"
    )
    assert graph.ops[0].op_class is OpClass.CONTROL_FLOW
    assert graph.subgraph_ops == {"MatMul": 1, "Identity": 2}


@pytest.mark.parametrize(("count", "macs"), [(5000, 5000 * 64), (10**9, 10**9 * 64), (2**62, 0)])
def test_a_long_loop_is_one_operator_with_the_work_of_all_runs(count, macs):
    weights, shapes = constants(n=count), "float[1,8] y"
    graph = graph_of([loop("n", "")], "float[1,8] x", "y", weights, value_info=shapes)
    (only,) = graph.ops
    assert (graph.macs, graph.precision, sum(reads(only).values())) == (macs, "fp32", 288)
    assert only.op_class is (OpClass.PRODUCT if macs else OpClass.CONTROL_FLOW)
    assert bool(graph.subgraph_ops) is not bool(macs)


def test_a_long_loop_whose_first_state_is_a_constant_calculates_all_the_same():
    weights = constants(n=5000, x=np.zeros((1, 8), np.float32))
    nodes, shapes = [loop("n", ""), "z = Add(y, u)"], "float[1,8] y"
    graph = graph_of(nodes, "float[1,8] u", "z", weights, value_info=shapes)
    assert graph.macs == 5000 * 8 * 8


def test_a_long_scan_is_one_operator_with_the_work_of_all_runs():
    inner = body("sum = Add(s, e); t = Tanh(sum)", "float[8] s, float[8] e", "t, sum")
    scan = node("Scan", ["s0", "x"], ["last", "all"], body=inner, num_scan_inputs=1)
    graph = graph_of([scan], "float[8] s0, float[3000,8] x", "last, all")
    short = graph_of([scan], "float[8] s0, float[1,8] x", "last, all")
    assert classes(graph) == "reduction"
    assert graph.ops[0].elements == 3000 * sum(op.elements for op in short.ops) > 0
    assert shapes(graph, "all") == "3000x8"


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_is_a_body_for_each_element(axis):
    inner = body("sum = Add(s, e); t = MatMul(sum, v)", "float[1,8] s, float[1,8] e", "t, sum")
    shape = (20, 1, 8) if axis == 0 else (1, 20, 8)
    scan = node(
        "Scan",
        ["s0", "x"],
        ["last", "all"],
        body=inner,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
    )
    inputs, weights = {"s0": (1, 8), "x": shape}, constants(v=np.zeros((8, 8)))
    graph = graph_of([scan], inputs, "last, all", weights)
    assert graph.macs == 20 * 64
    assert [graph.tensors[name].shape for name in ("last", "all")] == [(1, 8), shape]


def test_control_flow_within_known_control_flow_is_expanded_too():
    inner = body([choice("c")], "", "y")
    weights = [*WEIGHTS, *constants(c=True)]
    graph = graph_of([either("c", "z", inner)], "float[1,8] x", "z", weights)
    assert (graph.macs, shapes(graph)) == (32, "1x4")


def test_a_body_that_reads_what_comes_later_is_refused():
    late = body("a = Relu(b); b = Relu(x)", "", "a")
    with pytest.raises(lm.ModelError, match="which nothing produces before"):
        graph_of([either("c", "y", late)], "float[4] x", "y", constants(c=True))


@pytest.mark.parametrize(("rate", "macs"), [(16_000, 32), (8_000, 48)])
@pytest.mark.parametrize("shape", ["", "[1]"])
def test_the_value_of_an_input_of_one_element_decides(rate, macs, shape):
    """As voice activity detectors choose their network by the rate of the samples."""
    nodes = ["same = Equal(sr, known)", choice("same")]
    weights = [*WEIGHTS, *constants(known=16_000)]
    rates = model(nodes, f"float[1,8] x, int64{shape} sr", "y", weights)
    graph = lm.load(rates, dims={"sr": rate})
    assert (graph.macs, set(graph.inputs)) == (macs, {"x"})
    with pytest.raises(lm.ModelError, match="sr=-"):
        lm.load(rates, dims={"x": -1, "sr": 16_000 * 10**18 * -1})


def test_shapes_that_a_body_notes_may_be_out_of_date():
    """As after an edit of the batch; runtimes infer them again."""
    stale = body(["t = Relu(x)", "u = Neg(t)"], "", "u", value_info="float[9,8] t")
    nodes = [either("c", "y", stale, body("u = Abs(x)", "", "u")), "z = Relu(y)"]
    graph = graph_of(nodes, "bool c, float[4,8] x", "z", value_info="float[4,8] y")
    assert shapes(graph, "y") == "4x8"
