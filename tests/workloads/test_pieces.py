"""Random graphs in random pieces: verifiers work out by themselves what pieces read and make."""

import numpy as np
import pytest
from tests.support.lowered import check_pieces, parts_of, planned
from tests.support.networks import npu
from tests.support.onnx_builder import constants, graph_of, model, sizes
from tests.support.random_networks import (
    LAYERS,
    random_network,
    resized,
)

import loadmaster as lm
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.grid import WHOLE, divisible
from loadmaster.workloads.lowering.pieces import Cuts, Pieces
from loadmaster.workloads.window import volume, whole


def grid_of(form, generator):
    axes = generator.permutation(form.axes)[: generator.integers(1, 3)].tolist()
    return form.grid({axis: int(generator.integers(2, 5)) for axis in axes})


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_random_graphs_in_random_pieces_hold(seed):
    """What the verifiers work out by themselves, from the windows and from the model, agrees with
    what pieces read."""
    build = random_network(200 + seed, (*LAYERS, resized))
    _, _, forms = parts_of(graph := build.graph())
    cuts = Cuts([WHOLE if form is None else grid_of(form, build.generator) for form in forms])
    for form, grid in zip(forms, cuts.cuts, strict=True):
        for uses in form.uses.values() if form else ():
            several = uses.needed_boxes(np.array(grid.boxes, dtype=np.int64))
            assert np.array(uses.needed(grid.boxes)).tolist() == several.tolist()
    workload = check_pieces(graph, cuts, npu())
    assert any(job.ranges for job in workload.jobs)
    assert sum(job.macs for job in workload.jobs) >= graph.macs


def test_what_is_whole_reads_all_that_it_touches_of_parts():
    """A pool that needs eleven of twelve rows is said to touch all; so it does where a piece of
    another operator has cut its operand, whatever dimensions it might be cut along itself."""
    nodes = "a = Relu(x); p = MaxPool<kernel_shape=[3,3], strides=[2,2]>(x)"
    graph = lm.load(model(nodes, "float[1,4,12,6] x", "a, p"))
    relu, pool = (divisible(graph, group) for group in fuse(graph))
    cuts = [Cuts([relu.grid({2: 2}), pool.grid({})])]
    job = lm.lower([graph], lm.target("edge-npu"), cuts=cuts).jobs[-1]
    touched = graph.ops[-1].reads[0].bytes
    assert [operand.bytes for operand in job.reads] == [touched // 2, touched // 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "nodes", "inputs"),
    [
        (4, "y = Cast<to=1>(x)", "int4[{}] x"),
        (2, "y = Cast<to=1>(x)", "uint2[{}] x"),
        (4, "y = Cast<to=22>(x)", "float[{}] x"),
        (2, "y = Cast<to=26>(x)", "float[{}] x"),
    ],
)
@pytest.mark.parametrize("shape", ["7", "2,7", "7,3", "9,5", "8,8"])
def test_pieces_of_elements_smaller_than_bytes_have_room_for_them(width, nodes, inputs, shape):
    graph = lm.load(model(nodes, inputs.format(shape), "y", opset=25))
    (form,) = parts_of(graph).forms
    for axis in form.axes if form else ():
        cuts = [Cuts([form.grid({axis: 3})])]
        plan = planned(lm.lower([graph], npu(), cuts=cuts), npu())
        assert lm.verify(plan) == ()
        for tensor in plan.tensors:
            elements = volume(tensor.ranges or whole(tensor.shape))
            narrow = (tensor.storage == "y") == inputs.startswith("float")
            assert 8 * tensor.bytes >= elements * (width if narrow else 32)


@pytest.mark.parametrize(
    ("nodes", "shape", "share"),
    [
        ("t = Transpose(w)", (24, 16), 1 / 4),
        ("i = Identity(w); t = Transpose<perm=[1, 0]>(i)", (24, 16), 1 / 4),
        ("u = Transpose(w); v = Transpose(u); t = Transpose(v)", (24, 16), 1 / 4),
        ("u = Transpose<perm=[1, 2, 0]>(w); t = Reshape(u, s)", (24, 8, 2), 1),
    ],
)
def test_a_piece_reads_its_own_rows_of_a_transposed_weight(nodes, shape, share):
    """Columns of a product are rows of the embedding that has the same weights; where views are
    transposed and reshaped, all of it is read."""
    weights = constants(w=np.zeros(shape), s=[16, 24])
    nodes = [nodes, "e = Gather(w, ids)", "y = MatMul(x, t)"]
    inputs = "float[4, 16] x, int64[1] ids"
    single, fused, forms = parts_of(graph_of(nodes, inputs, "y, e", weights))
    number = next(n for n, group in enumerate(fused) if group.main.kind == "MatMul")
    cuts = [WHOLE] * len(fused)
    cuts[number] = forms[number].grid({1: 4})
    pieces = Pieces(single, fused, Cuts(cuts))
    for tile in range(4):
        own = [read.bytes for read in pieces.reads[number][tile] if read.storage == "w"]
        assert sum(own) == 24 * 16 * 4 * share


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ("1x4x24", (0, 1)),
        ("4x1x24", (0, 1)),
        ("2x2x24", (1,)),
        ("4x24x1", (0, 1)),
        ("4x4x6", (0,)),
        ("96", None),
        ("8x12", None),
    ],
)
def test_what_is_fused_under_another_shape_leaves_the_dimensions_that_both_have(shape, axes):
    nodes = """
        p = MatMul(x, w)
        v = Reshape(p, s)
        y = Relu(v)
    """
    weights = constants(w=np.zeros((16, 24)), s=sizes(shape))
    single, fused, (form,) = parts_of(graph_of(nodes, "float[4, 16] x", "y", weights))
    assert len(fused) == 1
    assert axes == (None if form is None else form.axes)
    if form is not None:
        grid = form.grid({form.axes[-1]: 3})
        pieces = Pieces(single, fused, Cuts([grid]))
        assert len(pieces.parts["y"]) == 3
        assert sum(part.bytes for part in pieces.parts["y"]) == 4 * 24 * 4
        read = sum(read.bytes for read in pieces.reads[0][0] if read.storage == "w")
        assert read == 16 * 24 * 4 / (3 if axes[-1] == 1 else 1)


def test_an_input_of_which_pieces_leave_out_some_rows_stays_whole():
    """Between what a strided convolution reads are gaps, which no grid of the reshaped input
    leaves out."""
    nodes = "v = Reshape(x, s); y = Conv<kernel_shape=[1], strides=[3]>(v, w)"
    weights = constants(s=[1, 1, 12], w=np.ones((2, 1, 1)))
    graph = graph_of(nodes, "float[1,1,3,4] x", "y", weights)
    (form,) = filter(None, (divisible(graph, group) for group in fuse(graph)))
    plan = planned(lm.lower([graph], npu(), cuts=[Cuts([form.grid({2: 4})])]), npu())
    assert lm.verify(plan) == ()
    assert sum(tensor.storage == "x" for tensor in plan.tensors) == 1
