"""A precision says what floating-point tensors become; what a file holds quantised stays so, and
the plan says so and holds."""

import numpy as np
import pytest
from tests.support.efforts import verified
from tests.support.onnx_builder import constant, constants, model, save
from tests.support.tflite_models import started

import loadmaster as lm

PRECISIONS = ["fp32", "fp16", "int8"]
WEIGHTS = [
    *constants(s=0.1),
    constant("z", 0, "int8"),
    constant("w", np.zeros((16, 8, 3, 3)), "int8"),
]


def quantised(kind):
    """A convolution of eight bits as quantisers write it: as one operator, or between pairs of
    operators that quantise."""
    first = "xq = QuantizeLinear(x, s, z)"
    last = "y = DequantizeLinear(yq, s, z)"
    if kind == "operator":
        conv = "yq = QLinearConv(xq, s, z, w, s, z, s, z)"
    else:
        conv = """
            xd = DequantizeLinear(xq, s, z)
            wd = DequantizeLinear(w, s, z)
            c = Conv(xd, wd)
            yq = QuantizeLinear(c, s, z)
        """
    return model([first, conv, last], "float[1,8,16,16] x", "y", WEIGHTS)


def tflite(folder):
    made, main = started()
    x = main.input("1x16x16x8", "int8", name="x")
    weight = main.tensor("16x3x3x8", "int8", 1)
    options = {0: 1, 1: 1, 2: 1, 4: 1, 5: 1}
    main.outputs = [main.out("CONV_2D", [x, weight], "1x14x14x16", options, dtype="int8")]
    return made.save(folder)


def planned(graphs):
    target = lm.target("edge-npu")
    return verified(graphs, target)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["operator", "pairs", "tflite"])
def test_a_quantised_network_stays_quantised(kind, precision, tmp_path):
    path = tflite(tmp_path) if kind == "tflite" else save(tmp_path, quantised(kind))
    graph = lm.load(path, precision=precision)
    plan = planned([graph])
    assert graph.precision == plan.networks[0].precision == "int8"


def test_networks_of_both_kinds_are_planned_together(tmp_path):
    floating = model("y = MatMul(x, v)", "float[4,64] x", "y", "float[64,64] v")
    sources = [save(tmp_path, quantised("operator")), save(tmp_path, floating, "floating.onnx")]
    plan = planned([lm.load(path, precision="fp16") for path in sources])
    assert [network.precision for network in plan.networks] == ["int8", "fp16"]


def test_the_precision_is_that_of_the_arithmetic(tmp_path):
    """A floating-point operand that is quantised at run time comes first, and weights decide."""
    product = "y = com.microsoft.DynamicQuantizeMatMul(x, w, s)"
    weights = [constant("w", np.zeros((64, 64)), "int8"), *constants(s=0.1)]
    proto = model([product], "float[4,64] x", "y", weights)
    graph = lm.load(save(tmp_path, proto))
    assert graph.precision == planned([graph]).networks[0].precision == "int8"


def test_the_precision_is_of_the_width_that_multiplies_most():
    """Nine parts in eight bits, six and five in two types of sixteen."""
    nodes = "a = MatMulInteger(x, w); b = MatMul(h, v); c = MatMul(k, u)"
    inputs = "int8[1,9] x, float16[1,6] h, bfloat16[1,5] k"
    weights = [
        constant("w", np.zeros((9, 4)), "int8"),
        constant("v", np.zeros((6, 4)), "float16"),
        constant("u", np.zeros((5, 4)), "bfloat16"),
    ]
    graph = lm.load(model(nodes, inputs, "a, b, c", weights))
    assert planned([graph]).networks[0].precision == "fp16"
