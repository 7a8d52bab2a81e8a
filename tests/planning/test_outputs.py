"""Networks whose outputs are not results of planned work: shapes, inputs and constants passed
through."""

import numpy as np
import pytest
from tests.support.efforts import TEST
from tests.support.onnx_builder import constants, graph_of

import loadmaster as lm


@pytest.mark.parametrize(
    "extra", ["Shape(x)", "Identity(unread)", "Identity(x)", "Identity(w)", "Identity(y)"]
)
def test_such_outputs_plan_and_hold(extra):
    nodes = ["y = Relu(x)", f"extra = {extra}"]
    graph = graph_of(
        nodes, "float[1,8] x, float[1,8] unread", "y, extra", constants(w=np.zeros((1, 8)))
    )
    plan = lm.plan([graph], lm.target("edge-npu"), effort=TEST)
    assert lm.verify(plan) == ()
