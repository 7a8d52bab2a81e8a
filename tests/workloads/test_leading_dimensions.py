"""Matrix products whose rows exporters flatten make what has the shape in which it is read."""

import numpy as np
import pytest
from tests.support.efforts import verified
from tests.support.networks import npu
from tests.support.onnx_builder import constants, model, shapes

import loadmaster as lm
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.grid import divisible
from loadmaster.workloads.lowering.single_assignment import without_updates

WEIGHTS = constants(flat=[12, 8], apart=[2, 6, 16], w=np.ones((8, 16)), b=np.ones(16))
PRODUCT = """
    [flatten] f = Reshape(x, flat)
    [product] g = Gemm(f, w, b)
    [apart] h = Reshape(g, apart)
    [relu] y = Relu(h)
"""


def network(*nodes, outputs="y", rows=(2, 6)):
    return lm.load(model([PRODUCT, *nodes], {"x": (*rows, 8)}, outputs, WEIGHTS))


def test_what_follows_a_product_of_flattened_rows_is_cut_with_it():
    graph = without_updates(network())
    (group,) = fuse(graph)
    assert [op.name for op in group.ops] == ["product", "relu"]
    assert shapes(graph, "g") == "2x6x16"
    form = divisible(graph, group)
    assert (form.shape, form.axes) == ((2, 6, 16), (0, 1, 2))
    plan = verified([network()], npu(2, 512))
    assert any(job.tiles > 1 for job in plan.jobs)


@pytest.mark.parametrize(
    "changed",
    [
        network(outputs="y, g"),
        network("[other] z = Relu(g)", outputs="y, z"),
        # There is no array of which the flattened rows are two dimensions.
        network(rows=(12,)),
    ],
    ids=["result of the network", "read in two shapes", "flat from the start"],
)
def test_other_products_are_left_as_they_are(changed):
    graph = without_updates(changed)
    assert shapes(graph, "g") == "12x16"
    assert next(op for op in graph.ops if op.name == "product").axes == (0, 1)


def test_an_operator_whose_result_is_one_number_without_dimensions_has_no_rows():
    graph = lm.load(model("m = ReduceMax<keepdims=0>(x); y = Div(x, m)", "float[4,8] x", "y"))
    assert without_updates(graph).tensors["m"].shape == ()
