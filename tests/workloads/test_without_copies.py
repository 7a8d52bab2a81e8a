"""Operators that only move elements are left out where their readers can do without, and nowhere
else."""

import numpy as np
import pytest
from tests.support.efforts import verified
from tests.support.lowered import parts_of
from tests.support.networks import npu
from tests.support.onnx_builder import constants, graph_of, int8_graph
from tests.support.random_networks import random_network

import loadmaster as lm
from loadmaster.workloads.job import Role
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.pieces import plain_cuts, sizes_for
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.window import volume

HEADS, CACHED, WIDTH = 2, 40, 16


def decoder(*, past_is_input=True, twice=False):
    """Scores and weighted sum of one query over a cache that grows by one step; keys are
    transposed."""
    nodes = [
        "[make] unused = Relu(old)" if past_is_input else "[make] past = Relu(old)",
        "[project] new = MatMul(x, w)",
        "[append] present = Concat<axis=2>(past, new)",
        "[turn] keys = Transpose<perm=[0, 1, 3, 2]>(present)",
        "[score] scores = MatMul(x, keys)",
        "[mix] y = MatMul(scores, present)",
        "[look] z = Softmax(keys)" if twice else "",
    ]
    shape = (1, HEADS, CACHED, WIDTH)
    inputs = {"x": (1, HEADS, 1, WIDTH), "old": shape} | ({"past": shape} if past_is_input else {})
    outputs = ["y", "present", *(["unused"] if past_is_input else []), *(["z"] if twice else [])]
    return int8_graph(nodes, inputs, outputs, {"w": (WIDTH, WIDTH)})


def kinds(graph):
    return {op.name for op in without_updates(graph).ops}


def test_an_input_grows_in_place_by_one_result_only():
    """Two cannot both lie behind it."""
    nodes = """
        n = Relu(x)
        m = Sigmoid(x)
        k = Concat<axis=1>(p, n)
        l = Concat<axis=1>(p, m)
    """
    found = without_updates(graph_of(nodes, "float[2,3,8] x, float[2,5,8] p", "k, l"))
    assert {*found.outputs} in ({"k", "m"}, {"n", "l"})


def test_a_cache_that_is_an_input_grows_in_place():
    graph = decoder()
    single = without_updates(graph)
    assert kinds(graph) == {"make", "project", "score", "mix"}
    assert single.outputs == ("y", "new", "unused")
    assert "in place" in str(single.notes)
    workload = lm.lower([graph], npu())
    reads = {job.operators[0]: job.reads for job in workload.jobs}
    for operator in ("score", "mix"):
        found = {operand.tensor: operand for operand in reads[operator]}
        # The cache and the new step are the weight operand of the product, which may be fetched
        # several times.
        assert found["net/past"].bytes == HEADS * CACHED * WIDTH
        assert found["net/new"].bytes == HEADS * WIDTH
        assert found["net/past"].role is found["net/new"].role is Role.WEIGHT
    verified([graph], npu())


def test_a_cache_that_operators_make_is_copied_into_what_the_network_returns():
    assert kinds(decoder(past_is_input=False)) == {"make", "project", "append", "score", "mix"}


def test_what_is_no_product_reads_what_a_transposition_makes():
    assert "turn" in kinds(decoder(twice=True))


@pytest.mark.parametrize(
    ("reader", "left_out"),
    [
        ("d = Relu(both)", True),
        ("d = Softmax(both)", True),
        ("d = Flatten(both)", True),
        ("d = Reshape(both, shape)", False),
        ("d, e = TopK(both, count)", False),
    ],
)
def test_a_concatenation_is_made_for_readers_that_cannot_say_what_they_need(reader, left_out):
    nodes = f"""
        [first] b = Relu(a)
        [join] both = Concat<axis=1>(b, c)
        [read] {reader}
        [last] y = Neg(d)
    """
    sizes = constants(shape=[4, 4], count=[2])
    graph = graph_of(nodes, "float[2,3] a, float[2,5] c", "y", sizes)
    assert ("join" not in kinds(graph)) == left_out


def test_tiles_fill_the_arrays_and_are_as_wide_as_the_machine_is_balanced():
    """100 rows of 4,096 channels to 4,100: tiles are multiples of the arrays' rows, but for the
    last."""
    target = npu(2, 100_000)
    weights = "float[256,1003] w"
    graph = int8_graph("[wide] y = MatMul(x, w)", "float[100,256] x", "y", weights)
    single = without_updates(graph)
    (cut,) = plain_cuts(single, fuse(single), target)
    assert sizes_for(target).step == 8
    rows, channels = cut.ends
    assert (len(rows), channels[-1]) == (1, 1003)
    assert len(channels) > 1
    assert all(end % 8 == 0 for end in channels[:-1])


def test_a_tile_over_channels_reads_all_of_a_concatenated_input_whose_parts_have_as_many_channels():
    nodes = """
        [one] left = Relu(x)
        [other] right = Neg(x)
        [join] both = Concat<axis=1>(left, right)
        [convolve] y = Conv(both, w)
    """
    graph = int8_graph(nodes, "float[1,16,4,4] x", "y", "float[16,32,1,1] w")
    workload = lm.lower([graph], npu(1, 1_100))
    tiles = [job for job in workload.jobs if job.operators[0] == "convolve"]
    assert len(tiles) > 1
    for tile in tiles:
        assert {
            operand.tensor: operand.bytes for operand in tile.reads if operand.role is Role.INPUT
        } == {"net/left": 256, "net/right": 256}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [387, 392, 400, 413])
def test_what_is_left_out_once_leaves_nothing_more_to_leave_out(seed):
    """Cuts are of the operators that are left; a second look would leave out others."""
    graph = without_updates(lm.load(random_network(seed, length=6).model(), name="random"))
    assert without_updates(graph) is graph
    verified([graph], npu(2, 4096))


@pytest.mark.slow
def test_a_part_that_lies_in_another_order_is_needed_by_its_own_dimensions():
    """Transpositions that only rename bytes: each half of the rows is one operand as a whole."""
    graph = graph_of(
        """
            a = Transpose<perm=[1, 0, 2]>(x)
            b = Transpose<perm=[1, 0, 2]>(y)
            c = Concat<axis=0>(a, b)
            [product] z = MatMul(c, w)
        """,
        "float[1,3,4] x, float[1,3,4] y",
        "z",
        constants(w=np.zeros((4, 5))),
    )
    _, _, (form,) = parts_of(graph)
    boxes = form.grid({0: 2}).boxes
    assert [volume(box) for box in form.uses["x"].needed(boxes)] == [12, 0]
    assert [volume(box) for box in form.uses["y"].needed(boxes)] == [0, 12]
