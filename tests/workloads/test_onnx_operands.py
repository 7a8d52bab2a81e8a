"""Operators whose operands are constant, empty, or one tensor twice: what a file says decides, and
an exception that nobody raised on purpose is never blamed on it."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.onnx_builder import constants, graph_of, model, only, reads, shapes
from tests.support.onnx_node_cases import node_cases
from tests.workloads.test_onnx_runtime_ops import CASES, parts_of

import loadmaster as lm
from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.rules import RULES, WHOLE, Rule


@pytest.mark.parametrize(("operands", "rows"), [("x, x", 8), ("k, k, x", 8), ("x, k, x", 10)])
def test_a_repeated_operand_is_concatenated_and_its_copy_is_made(operands, rows):
    """An operand that stands in two places of the result cannot be read where it lies."""
    weights = constants(k=np.zeros((1, 2, 8)))
    graph = graph_of(f"y = Concat<axis=1>({operands})", "float[1,4,8] x", "y", weights)
    assert shapes(graph) == f"1x{rows}x8"
    assert not only(graph, "Concat").copies


def test_an_empty_constant_before_an_operand_adds_nothing():
    weights = constants(none=np.zeros((1, 0)))
    graph = graph_of("c = Concat<axis=1>(none, x); y = Relu(c)", "float[1,4] x", "y", weights)
    assert shapes(graph, "c") == "1x4"
    assert [*reads(graph.ops[0])] == ["x"]


def test_a_product_that_cannot_be_cut_changes_no_other_operator():
    """Its declared result has another rank than its product, which inference refuses."""
    weights = constants(b=np.zeros((8, 4)), c=np.zeros(4))
    nodes = ["p = Gemm(x, b, c)", "y = Relu(p)"]
    graph = graph_of(nodes, "float[8] x", "y", weights, value_info="float[1,4] p")
    assert not any(access.windows for access in only(graph, "Gemm").reads)
    assert not WHOLE.operands


def test_an_exception_of_a_rule_is_our_defect_and_names_the_operator(monkeypatch):
    def broken(_):
        raise IndexError("tuple index out of range")

    monkeypatch.setitem(RULES, ("", "Tile"), Rule(broken))
    with pytest.raises(ModelError) as caught:
        graph_of("[t] y = Tile(x, n)", "float[1,4] x", "y", constants(n=[1, 2]))
    assert str(caught.value).endswith(
        "operator 't' (Tile): a defect of Loadmaster (IndexError: tuple index out of range):"
        " please report it with the file"
    )


def test_what_the_checker_refuses_is_said_in_its_words():
    with pytest.raises(ModelError, match=r"'t' \(Conv\) is not valid: .*t : strides") as caught:
        graph_of(
            '[t] y = Conv<strides="two">(x, w)',
            "float[1,4,8,8] x",
            "y",
            "float[4,4,3,3] w",
            value_info="float[1,4,6,6] y",
        )
    assert "defect" not in str(caught.value)


def inputs_of(model):
    """Element type and shape of the inputs that are tensors of numbers."""
    found = {}
    for item in model.graph.input:
        tensor = item.type.tensor_type
        if tensor.HasField("shape") and tensor.elem_type != TensorProto.STRING:
            shape = [dim.dim_value for dim in tensor.shape.dim]
            found[item.name] = (tensor.elem_type, shape)
    return found


def with_constants(model, constants, *gone):
    """A copy in which some inputs are constants of ones, and others are left out."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [item for item in made.graph.input if item.name not in (*constants, *gone)]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    for name, (dtype, shape) in constants.items():
        ones = np.ones(shape).astype(helper.tensor_dtype_to_np_dtype(dtype))
        made.graph.initializer.append(numpy_helper.from_array(ones, name))
    return made


def variants(model):
    """The model with each input a constant, all of them, each without elements, and each the same
    as another of its type and shape."""
    yield model
    inputs = inputs_of(model)
    yield with_constants(model, inputs)
    for name, (dtype, shape) in inputs.items():
        yield with_constants(model, {name: (dtype, shape)})
        for axis in range(len(shape)):
            empty = [*shape[:axis], 0, *shape[axis + 1 :]]
            yield with_constants(model, {name: (dtype, empty)})
    firsts = {}
    for name, kind in inputs.items():
        first = firsts.setdefault(str(kind), name)
        if first != name:
            twice = with_constants(model, {}, name)
            for each in twice.graph.node:
                each.input[:] = [first if operand == name else operand for operand in each.input]
            yield twice
            yield with_constants(twice, {first: kind})


def assert_loads_or_is_refused(model):
    reason = ""
    try:
        lm.load(model)
    except ModelError as error:
        reason = str(error)
    assert "defect" not in reason, onnx.printer.to_text(model)


@pytest.mark.slow
def test_no_operand_of_any_operator_meets_a_defect():
    """Four of ONNX's own tests of each operator."""
    tried = Counter()
    for case in node_cases():
        kind = case.model.graph.node[0].op_type
        tried[kind] += 1
        if tried[kind] > 4:
            continue
        for made in variants(case.model):
            assert_loads_or_is_refused(made)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({case[0] for case in CASES}))
def test_no_operand_of_onnx_runtimes_operators_meets_a_defect(kind):
    for name, operands, attributes, results, _ in CASES:
        if name == kind:
            free = [each if isinstance(each, str) else (*each[:2], False) for each in operands]
            for made in variants(model(*parts_of(kind, free, len(results), attributes), opset=17)):
                assert_loads_or_is_refused(made)


def test_axes_of_an_old_slice_may_be_in_any_order():
    cut = "y = Slice<axes=[2, 1], starts=[1, 0], ends=[5, 3]>(x)"
    graph = graph_of(cut, "float[1,4,8,8] x", "y", opset=9)
    assert shapes(graph, "y") == "1x3x4x8"


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        # Nothing is added to a result that is as large as the strides make it.
        ('auto_pad="SAME_UPPER", strides=[2], output_padding=[1]', 16),
        ('auto_pad="SAME_LOWER", strides=[4], output_padding=[1]', 32),
        ('auto_pad="SAME_LOWER", strides=[6], output_padding=[1]', 47),
        ("strides=[2], output_padding=[1]", 19),
        # A result of a told size may be smaller than the operand.
        ("strides=[2], output_shape=[5]", 5),
        ('auto_pad="VALID", output_shape=[7]', 7),
    ],
)
def test_a_transposed_convolution_is_of_the_size_that_onnx_runtime_makes(attributes, size):
    node = f"y = ConvTranspose<{attributes}>(x, w)"
    graph = graph_of(node, "float[1,2,8] x", "y", "float[2,3,4] w")
    assert shapes(graph) == f"1x3x{size}"
    assert graph.ops[0].nests[0].macs == 8 * 2 * 3 * 4


@pytest.mark.parametrize("kind", ["Quant", "BipolarQuant", "Trunc", "FloatQuant"])
def test_operators_of_qonnx_keep_the_shape_of_what_they_round(kind):
    nodes = f"q = qonnx.custom_op.general.{kind}(x, s); y = MatMul(q, w)"
    weights = constants(s=0.5, w=np.zeros((8, 4)))
    graph = graph_of(nodes, "float[2,8] x", "y", weights)
    assert (graph.tensors["q"].shape, graph.macs, graph.unknown_ops) == ((2, 8), 64, {})
    assert graph.ops[0].elements == 16
