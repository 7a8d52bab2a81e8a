"""Networks whose outputs are not results of planned work: shapes, inputs and constants passed
through."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.efforts import TEST

import loadmaster as lm


@pytest.mark.parametrize(
    "extra",
    [
        helper.make_node("Shape", ["x"], ["extra"]),
        helper.make_node("Identity", ["unread"], ["extra"]),
        helper.make_node("Identity", ["x"], ["extra"]),
        helper.make_node("Identity", ["constant"], ["extra"]),
        helper.make_node("Identity", ["y"], ["extra"]),
    ],
    ids=lambda node: f"{node.op_type}-{node.input[0]}",
)
def test_such_outputs_plan_and_hold(extra, tmp_path):
    def value(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8])

    result = helper.make_tensor_value_info(
        "extra", TensorProto.INT64 if extra.op_type == "Shape" else TensorProto.FLOAT, None
    )
    nodes = [helper.make_node("Relu", ["x"], ["y"]), extra]
    constant = numpy_helper.from_array(np.zeros((1, 8), dtype=np.float32), "constant")
    graph = helper.make_graph(
        nodes, "passed", [value("x"), value("unread")], [value("y"), result], [constant]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
        tmp_path / "passed.onnx",
    )
    plan = lm.plan([lm.load(tmp_path / "passed.onnx")], lm.target("edge-npu"), effort=TEST)
    assert lm.verify(plan) == ()
