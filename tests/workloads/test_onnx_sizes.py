import json

import numpy as np
import pytest
from tests.support.onnx_builder import (
    classes,
    constant,
    constants,
    graph_of,
    model,
    node,
    save,
    shapes,
)
from tests.support.tables import cases

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.graph import OpClass, TensorKind

TOKENS = "int64[batch,seq] ids, int64[batch,seq] mask"
LOOKUP = "e = Gather(table, ids); m = Identity(mask)"


def lookup(**options):
    return graph_of(LOOKUP, TOKENS, "e, m", "float[100,8] table", options=options)


def test_symbolic_dimensions_are_set_by_name_and_by_batch():
    graph = lookup(batch=3, dims={"seq": 5})
    assert (shapes(graph), graph.batch) == ("3x5x8 3x5", 3)


def test_every_unknown_dimension_is_listed_with_the_option_to_give():
    with pytest.raises(ModelError) as caught:
        lookup()
    assert (
        str(caught.value).partition("net.onnx: ")[2]
        == "dimension 'batch' of input 'ids' is unknown: give --dim batch=N"
        " or --batch N; dimension 'seq' of input 'ids' is unknown: give --dim seq=N"
    )


def test_unnamed_dimensions_are_set_by_tensor_and_axis():
    graph = graph_of(
        "y = Relu(x)", {"x": (None, None)}, "y", options={"batch": 2, "dims": {"x.1": 7}}
    )
    assert shapes(graph, "y") == "2x7"
    with pytest.raises(
        ModelError,
        match=(
            r"dimension 0 of input 'x' is unknown: give --dim x\.0=N or --batch N; dimension 1 of"
            r" .* x\.1=N"
        ),
    ):
        graph_of("y = Relu(x)", {"x": (None, None)}, "y")


def test_a_dimension_that_names_nothing_lists_those_that_exist():
    with pytest.raises(
        ModelError,
        match=r"--dim sequence=5 names no open dimension of this network: it has batch, seq$",
    ):
        lookup(dims={"sequence": 5})


def test_contradictory_or_impossible_sizes_are_refused():
    with pytest.raises(ModelError, match="--batch 3 contradicts --dim batch=2"):
        lookup(batch=3, dims={"batch": 2, "seq": 5})
    for options in ({"batch": 0}, {"dims": {"seq": -1}}, {"batch": -2}):
        with pytest.raises(ModelError, match="is not positive"):
            lookup(**options)


def test_a_fixed_batch_is_replaced_and_constant_reshapes_follow():
    nodes = """
        a = Reshape(x, fixed)
        b = MatMul(a, w)
        c = Reshape(b, open)
        y = Add(c, side)
    """
    inputs = "float[2,6,4] x, float[2,3,20] side, float[1] scale"
    weights = constants(fixed=[12, 4], open=[2, -1, 20], w=np.zeros((4, 10)))
    graph = graph_of(nodes, inputs, "y", weights, options={"batch": 6})
    assert shapes(graph, "x side scale a c y") == "6x6x4 6x3x20 1 36x4 6x3x20 6x3x20"
    assert (graph.batch, graph.macs) == (6, 36 * 4 * 10)


def test_a_larger_batch_scales_the_work_of_a_real_network():
    one, four = load("onnx:vgg19"), load("onnx:vgg19", batch=4)
    assert (four.macs, four.batch) == (4 * one.macs, 4)
    assert four.bytes_of(TensorKind.WEIGHT) == one.bytes_of(TensorKind.WEIGHT)


@pytest.mark.parametrize("more", ["", "<axes=[1,2,3]>", "<axes=[-4,-2,-1]>"])
def test_a_larger_batch_is_that_of_an_image_resized_to_given_sizes(more):
    sizes = {"": [1, 8, 16, 16], "<axes=[1,2,3]>": [8, 16, 16], "<axes=[-4,-2,-1]>": [1, 16, 16]}
    given = constants(sizes=sizes[more], w=np.ones((8, 8, 1, 1)))
    nodes = f"u = Resize{more}(x, , , sizes); y = Conv(u, w)"
    one, four = (
        graph_of(nodes, "float[1,8,8,8] x", "y", given, options={"batch": batch})
        for batch in (1, 4)
    )
    assert (shapes(four, "u"), four.macs) == ("4x8x16x16", 4 * one.macs)


def test_a_batch_that_a_constant_contradicts_is_refused_whatever_the_file_notes():
    given = constants(more=np.ones((1, 8, 2, 2)))
    noted = "float[1,8,10,2] c"
    proto = model(
        "c = Concat<axis=2>(x, more); y = Relu(c)", "float[1,8,8,2] x", "y", given, value_info=noted
    )
    assert shapes(load(proto), "y") == "1x8x10x2"
    with pytest.raises(ModelError, match=r"with a batch of 4.*export the network with that batch"):
        load(proto, batch=4)


def test_shape_subgraphs_are_folded_and_leave_no_work():
    """The usual way in which exporters flatten all but the batch, in run-time arithmetic."""
    nodes = """
        shape = Shape(x)
        n = Gather(shape, zero)
        tail = Slice(shape, one_, four_)
        rest = ReduceProd<keepdims=0>(tail)
        n_ = Unsqueeze(n, zero_)
        rest_ = Unsqueeze(rest, zero_)
        target = Concat<axis=0>(n_, rest_)
        target32 = Cast<to=6>(target)
        target64 = Cast<to=7>(target32)
        y = Reshape(x, target64)
    """
    weights = constants(zero=0, zero_=[0], one_=[1], four_=[4])
    graph = graph_of(nodes, "float[n,3,4,5] x", "y", weights, opset=17, options={"batch": 2})
    assert shapes(graph, "y") == "2x60"
    assert classes(graph) == "shape " * 9 + "view"
    assert set(graph.tensors) == {"x", "y"}
    assert all(not op.reads and not op.writes for op in graph.ops[:9])


def test_masks_made_of_ranges_are_constants_whatever_their_size():
    nodes = """
        r = Range(a, b, c)
        column = Unsqueeze(r, axis)
        causal = LessOrEqual(r, column)
        y = Where(causal, x, low)
    """
    weights = constants(a=0, b=512, c=1, axis=[1], low=-1e9)
    graph = graph_of(nodes, "float[512,512] x", "y", weights)
    causal = graph.tensors["causal"]
    assert (causal.kind, causal.bytes) == (TensorKind.WEIGHT, 512 * 512)
    assert graph.ops[3].bits == 32


@pytest.mark.parametrize(
    "row",
    cases("""
        Div(a, b) | [7, -7] | [2, 2] | [3, -3]
        Mod(a, b) | [7, -7] | [4, 4] | [3, 1]
        Mul(a, b) | [2, 3] | [4, 5] | [8, 15]
        Max(a, b) | [2, 9] | [4] | [4, 9]
        Tile(a, b) | [2, 3] | [2] | [2, 3, 2, 3]
        Where(a, b, c) | [true, false] | [4, 5] | [6, 7] | [4, 7]
        Expand(a, b) | [3] | [3] | [3, 3, 3]
        ConstantOfShape<value = int64[1] {0}>(a) | [2] | [0, 0]
    """),
)
def test_constants_are_folded_by_the_rules_of_onnx(row):
    """The folded values are the shape of a tensor that is expanded to them."""
    operator, *values, expected = row[0], *map(json.loads, row[1:])
    weights = constants(**dict(zip("abc", values, strict=False)), one=1)
    nodes = f"""
        s = {operator}
        t = Abs(s)
        u = Add(t, one)
        y = Expand(x, u)
    """
    graph = graph_of(nodes, "float x", "y", weights)
    assert graph.tensors["y"].shape == tuple(abs(value) + 1 for value in expected)


def test_the_file_may_note_what_inference_cannot_know():
    nodes = "where = NonZero(x); y = Cast<to=1>(where)"
    with pytest.raises(
        ModelError, match=r"the shape of 'where', output of .*NonZero.*: give --dim where\.1=N"
    ):
        graph_of(nodes, "float[4,4] x", "y")
    by_axis = graph_of(nodes, "float[4,4] x", "y", options={"dims": {"where.1": 7}})
    noted = "int64[2,found] where"
    by_name = graph_of(nodes, "float[4,4] x", "y", value_info=noted, options={"dims": {"found": 7}})
    assert shapes(by_axis) == shapes(by_name) == "2x7"


def test_old_files_list_initialisers_among_the_inputs():
    inputs = "float[1,4] x, float[4,8] w, float[8] unset"
    graph = graph_of("a = MatMul(x, w); y = Add(a, unset)", inputs, "y", "float[4,8] w")
    assert graph.inputs == ("x", "unset")
    assert graph.tensors["w"].kind is TensorKind.WEIGHT


def test_constant_nodes_and_sparse_initialisers_are_weights(tmp_path):
    values, indices = constant("sparse", [1.0, 2.0], np.float32), constant("", [3, 9])
    nodes = [
        node("Constant", [], "k", value=constant("", np.ones((4, 8)), np.float32)),
        "a = MatMul(x, k)",
    ]
    proto = model([*nodes, "y = Add(a, sparse)"], "float[1,4] x", "y")
    proto.graph.sparse_initializer.add(values=values, indices=indices, dims=[1, 8])
    graph = load(save(tmp_path, proto))
    assert [(graph.tensors[name].kind, graph.tensors[name].bytes) for name in ("k", "sparse")] == [
        (TensorKind.WEIGHT, 128),
        (TensorKind.WEIGHT, 32),
    ]


def test_an_unsorted_file_runs_in_the_order_of_its_data():
    nodes = """
        [last] y = Relu(b)
        [first] a = Exp(x)
        [middle] b = Abs(a)
    """
    graph = graph_of(nodes, "float[4] x", "y")
    assert [op.name for op in graph.ops] == ["first", "middle", "last"]


def test_operators_have_unique_names():
    nodes = """
        [n] a = Relu(x)
        [n] b = Relu(a)
        c = Relu(b)
        y = Abs(c)
    """
    graph = graph_of(nodes, "float[4] x", "y")
    assert [op.name for op in graph.ops] == ["n", "n-2", "Relu_2", "Abs_3"]
    assert graph.notes == (
        "1 operators share their names with others in the file and got a number appended",
    )


def test_an_output_leaves_in_the_type_that_it_declares_though_a_quantised_one_could_be_aliased():
    nodes = """
        q = Relu(x)
        real = DequantizeLinear(q, scale)
        flat = Reshape(real, to)
    """
    weights = constants(scale=0.1, to=[-1])
    inside = graph_of([nodes, "y = Relu(flat)"], "int8[1,10] x", "y", weights)
    assert inside.tensors["flat"].storage == "q"
    outside = graph_of(nodes, "int8[1,10] x", "flat", weights)
    assert (outside.tensors["flat"].alias_of, outside.tensors["flat"].bytes) == (None, 40)
    assert outside.ops[-1].op_class is OpClass.ELEMENTWISE
