"""Networks from `.tflite` files: work, views, control flow and states as the ONNX frontend would
have them, and files that are refused."""

import itertools
import random
import struct

import numpy as np
import pytest
from tests.support.efforts import verified
from tests.support.fuzzing import FUZZ
from tests.support.networks import npu
from tests.support.onnx_builder import classes, complaint, needed, reads, sizes
from tests.support.onnx_builder import graph_of as onnx_graph_of
from tests.support.tflite_models import Model, b, graph_of, i, one_operator, op_of, started
from tests.support.tflite_random import random_model

import loadmaster as lm
from loadmaster.core.errors import LoadmasterError, ModelError
from loadmaster.integrations.tflite.export import export_model
from loadmaster.integrations.tflite.flatbuffer_writer import (
    Existing,
    Number,
    Numbers,
    write_before,
)
from loadmaster.integrations.tflite.lifetimes import lifetimes
from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.frontends.tflite.flatbuffer import Flatbuffer
from loadmaster.workloads.frontends.tflite.model import parse_model
from loadmaster.workloads.frontends.tflite.schema import IDENTIFIER
from loadmaster.workloads.graph import Access, OpClass, TensorKind
from loadmaster.workloads.window import operand_box

SAME, VALID = 0, 1


CONV = {0: SAME, 1: 2, 2: 1, 4: 1, 5: 2}
"""Padding, strides of width and height, dilations of width and height."""
FIRST = (0, 3, 1, 2)
"""Where the dimensions of an image of TensorFlow Lite are in ONNX's."""
LAYERS = {
    "convolution": (
        ("CONV_2D", "2x9x11x6", "8x3x5x6 8", "2x9x6x8", CONV),
        'y = Conv<strides=[1, 2], dilations=[2, 1], auto_pad="SAME_UPPER">(x0, w0, w1)',
        "8x6x3x5",
    ),
    "grouped convolution": (
        ("CONV_2D", "1x9x9x6", "8x3x3x3 8", "1x7x7x8", {0: VALID, 1: 1, 2: 1}),
        'y = Conv<group=2, auto_pad="VALID">(x0, w0, w1)',
        "8x3x3x3",
    ),
    "depthwise convolution": (
        ("DEPTHWISE_CONV_2D", "1x8x8x4", "1x3x3x8 8", "1x4x4x8", {0: SAME, 1: 2, 2: 2, 3: 2}),
        'y = Conv<group=4, strides=[2, 2], auto_pad="SAME_UPPER">(x0, w0, w1)',
        "8x1x3x3",
    ),
    "pooling": (
        ("MAX_POOL_2D", "1x9x8x4", "", "1x5x4x4", {0: SAME, 1: 2, 2: 2, 3: 2, 4: 3}),
        'y = MaxPool<kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER">(x0)',
        "",
    ),
    "depth to space": (
        ("DEPTH_TO_SPACE", "1x3x4x8", "", "1x6x8x2", {0: 2}),
        "y = DepthToSpace<blocksize=2>(x0)",
        "",
    ),
    "sum": (("ADD", "1x4x4x3 1x4x4x3", "", "1x4x4x3", {0: 0}), "y = Add(x0, x1)", ""),
}


@pytest.mark.parametrize(("layer", "onnx_node", "filters"), LAYERS.values(), ids=LAYERS)
def test_a_layer_with_channels_last_has_the_work_and_the_windows_of_the_onnx_one(
    layer, onnx_node, filters
):
    ours = op_of(*layer)
    _, inputs, weights, result, _ = layer
    inputs = list(map(sizes, inputs.split()))
    shapes = {f"x{k}": tuple(shape[axis] for axis in FIRST) for k, shape in enumerate(inputs)}
    constants = enumerate([filters, *weights.split()[1:]] if filters else [])
    constants = {f"w{k}": sizes(shape) for k, shape in constants}
    theirs = onnx_graph_of(onnx_node, shapes, "y", constants).ops[0]
    for name in ("op_class", "elements", "macs"):
        assert getattr(ours, name) == getattr(theirs, name)
    for mine, other in zip(ours.nests, theirs.nests, strict=True):
        for name in ("k", "c", "y", "x", "r", "s", "groups", "batch", "stride", "dilation"):
            assert getattr(mine, name) == getattr(other, name)
        assert mine.loops == tuple(other.loops[FIRST.index(axis)] for axis in range(4))
    assert reads(ours) == reads(theirs)
    assert set(ours.axes) == {FIRST[axis] for axis in theirs.axes}
    for box in itertools.islice(boxes(sizes(result)), 200):
        for mine, other in zip(ours.reads, theirs.reads, strict=True):
            if mine.tensor.startswith("x"):
                shape = inputs[int(mine.tensor[1:])]
                found = operand_box(
                    other.windows, tuple(box[axis] for axis in FIRST), shapes[mine.tensor]
                )
                assert operand_box(mine.windows, box, shape) == tuple(
                    found[FIRST.index(axis)] for axis in range(4)
                )
            assert bool(mine.windows) == bool(other.windows)


def boxes(shape):
    rng = random.Random(0)
    while True:
        ends = [sorted(rng.sample(range(extent + 1), 2)) for extent in shape]
        yield tuple((first, last) for first, last in ends)


def test_a_fully_connected_layer_is_a_matrix_product_of_rows():
    flat = op_of("FULLY_CONNECTED", "3x20", "7x20 7", "3x7", {})
    (nest,) = flat.nests
    assert (nest.k, nest.c, nest.y, flat.macs, nest.loops) == (7, 20, 3, 420, ("y", "channels"))
    kept = op_of("FULLY_CONNECTED", "2x3x20", "7x20 7", "2x3x7", {})
    assert (kept.nests[0].y, kept.macs) == (6, 840)
    part = "1-2 0-2 3-5"
    x, weight, bias = kept.reads
    assert needed(x, part, "2x3x20") == "1-2 0-2 0-20"
    assert needed(weight, part, "7x20") == "3-5 0-20"
    assert needed(bias, part, "7") == "3-5"
    # Of operands whose rows lie in several dimensions all is read.
    merged = op_of("FULLY_CONNECTED", "2x4x5", "7x20 7", "2x7", {})
    assert (merged.macs, merged.axes) == (280, (0, 1))
    x, weight, _ = merged.reads
    assert (x.windows, needed(weight, "0-2 3-5", "7x20")) == ((), "3-5 0-20")


@pytest.mark.parametrize(("rows", "more"), [(24, 72), (33, 257), (7, 224), (61, 121)])
@pytest.mark.parametrize(("centred", "aligned"), [(0, 0), (1, 0), (0, 1)])
def test_integer_kernels_between_neighbours_count_positions_in_fixed_point(
    rows, more, centred, aligned
):
    model, main = started()
    x = main.input((1, rows, 1, 1), "int8")
    options = {2: aligned, 3: centred}
    shape = (1, more, 1, 1)
    main.last("RESIZE_BILINEAR", [x, main.ints(more, 1)], shape, options)
    windows = graph_of(model).ops[0].reads[0].windows
    step = (1024 * (rows - aligned) + (more - aligned) // 2) // (more - aligned)
    for row in range(more):
        at = row * step + (step // 2 - 512 if centred else 0)
        first, last = max(0, at // 1024), min(rows - 1, max(0, -(-at // 1024)))
        box = ((0, 1), (row, row + 1), (0, 1), (0, 1))
        _, (low, high), *_ = operand_box(windows, box, (1, rows, 1, 1))
        assert low <= first
        assert last < high <= last + 3


def test_a_batch_of_matrix_products_may_be_transposed():
    op = op_of("BATCH_MATMUL", "3x5x4 3x6x5", "", "3x4x6", {0: 1, 1: 1})
    assert op.macs == 3 * 4 * 5 * 6
    x, y = op.reads
    assert needed(x, "1-2 0-3 2-4", "3x5x4") == "1-2 0-5 0-3"
    assert needed(y, "1-2 0-3 2-4", "3x6x5") == "1-2 2-4 0-5"


def test_pieces_of_a_slice_read_by_its_starts_and_steps_or_all_where_these_are_not_known():
    def sliced(kind, starts, others, result, options):
        model, main = started()
        starts = main.ints(*starts) if starts else main.input("4", "int32")
        operands = [main.input("1x16x8x4"), starts, *(main.ints(*each) for each in others)]
        main.last(kind, operands, result, options)
        return graph_of(model).ops[0]

    ends, steps = (1, 16, 8, 4), (1, 3, 2, 1)
    strided = sliced("STRIDED_SLICE", (0, 2, 5, 0), (ends, steps), "1x5x4x4", {0: 4})
    # A bit of the first mask leaves the start of the third dimension open.
    assert needed(strided.reads[0], "0-1 1-3 2-3 0-4", "1x16x8x4") == "0-1 5-9 4-5 0-4"
    fewer = sliced("STRIDED_SLICE", (0, 5), ((1, 16), (1, 1)), "1x11x8x4", {})
    assert fewer.axes == (0, 1, 2, 3)
    assert needed(fewer.reads[0], "0-1 1-3 2-3 0-4", "1x16x8x4") == "0-1 6-8 2-3 0-4"
    last = sliced("STRIDED_SLICE", (0, -1, 0, 0), (ends, (1, 1, 1, 1)), "1x8x4", {4: 2})
    assert not last.axes
    assert not sliced("SLICE", (), ((1, 5, 4, 4),), "1x5x4x4", None).axes
    added = sliced("STRIDED_SLICE", (0, 0, 2, 0), (ends, (1, 1, 1, 1)), "1x16x6x4", {3: 2, 4: 1})
    assert not added.axes


def lstm(main, steps, width, cells):
    """Time first, four gates, no peepholes and no projection."""
    x = main.input((steps, 2, width), name="x")
    gates, recurrent, biases = (
        [main.tensor((cells, *widths), data=1) for _ in range(4)]
        for widths in ((width,), (cells,), ())
    )
    states = [
        main.tensor((2, cells), variable=True, name=name) for name in ("out state", "cell state")
    ]
    operands = [x, *gates, *recurrent, -1, -1, -1, *biases, -1, -1, *states]
    return main.out(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (steps, 2, cells), {0: 4, 3: 1}, name="result"
    )


def test_a_recurrent_cell_has_a_product_for_each_gate_and_updates_its_states():
    model, main = started()
    main.outputs = [lstm(main, 6, 10, 7)]
    op = graph_of(model).ops[0]
    assert op.macs == 6 * 2 * 4 * 7 * (10 + 7)
    assert {nest.repeats for nest in op.nests} == {1, 6}
    assert [access.tensor for access in op.writes] == ["result", "out state", "cell state"]
    assert {"out state", "cell state"} <= reads(op).keys()


def test_a_second_input_of_a_recurrent_cell_has_products_of_its_own():
    model, main = started()
    operands = [main.input("2x6x10", name="x")]
    for _ in "fb":
        operands += [main.tensor(shape, data=1) for shape in ("7x10", "7x7", "7")]
        operands.append(main.tensor("2x7", variable=True))
    operands += [main.input("2x6x5"), *(main.tensor("7x5", data=1) for _ in "fb")]
    main.last("BIDIRECTIONAL_SEQUENCE_RNN", operands, "2x6x7")
    assert graph_of(model).ops[0].macs == 2 * 6 * 2 * 7 * (10 + 7 + 5)


def test_views_and_constants_cost_nothing():
    model, main = started()
    x = main.input("1x4x4x2", name="x")
    half = main.tensor("2x1x1x2", "float16", 1, name="half")
    weight = main.out("DEQUANTIZE", [half], "2x1x1x2", name="weight")
    y = main.out("CONV_2D", [x, weight, -1], "1x4x4x2", {0: SAME, 1: 1, 2: 1}, name="y")
    main.last("RESHAPE", [y, main.ints(1, 32)], "1x32", {}, name="z")
    graph = graph_of(model)
    assert classes(graph) == "view product view"
    assert graph.tensors["z"].alias_of == "y"
    assert graph.bytes_of(TensorKind.WEIGHT) == 8
    assert graph.ops[1].nests[0].weight == "weight"


def add_branches(model):
    """Two subgraphs that scale a value, and make something else of it."""
    for kind in ("RELU", "TANH"):
        body = model.subgraph()
        operands = [body.input("1x8"), body.tensor("1x8", data=2, name="scale")]
        body.last(kind, [body.out("MUL", operands, options={0: 0})])


def test_bodies_of_control_flow_are_counted_and_their_weights_read():
    model, main = started()
    condition, x = main.input("1", "bool", name="c"), main.input("1x8", name="x")
    main.last("IF", [condition, x], "1x8", {0: 1, 1: 2})
    add_branches(model)
    graph = graph_of(model)
    assert graph.subgraph_ops == {"MUL": 2, "RELU": 1, "TANH": 1}
    assert graph.ops[0].op_class is OpClass.CONTROL_FLOW
    assert graph.ops[0].reads[2:] == (
        Access("subgraph_1/scale", 32),
        Access("subgraph_2/scale", 32),
    )


@pytest.mark.parametrize(("value", "kind"), [(1, "RELU"), (0, "TANH")])
def test_a_branch_that_is_always_run_stands_for_its_condition(value, kind):
    model, main = started()
    x, condition = main.input("1x8"), main.tensor("1", "bool", data=value)
    own = main.tensor("1x8", data=1)
    x = main.out("ADD", [x, own], "1x8", {0: 0})
    for _ in range(2):
        x = main.out("IF", [condition, x], "1x8", {0: 1, 1: 2})
    main.outputs = [x]
    add_branches(model)
    graph = graph_of(model)
    assert [op.kind for op in graph.ops] == ["ADD", "MUL", kind, "MUL", kind]
    assert graph.bytes_of(TensorKind.WEIGHT) == 64
    assert not graph.subgraph_ops


@pytest.mark.parametrize("given", [0, 1, 2])
def test_a_branch_that_does_not_fit_its_condition_stays(given):
    model, main = started()
    x, condition = main.input("1x8"), main.tensor("1", "bool", data=1)
    operands = [condition, *[x] * given] if given else []
    main.last("IF", operands, "1x8", {0: 1, 1: 1})
    body = model.subgraph()
    inner = [body.input("1x8") for _ in range(3 - given)]
    body.outputs = inner[:1]
    assert graph_of(model).ops[0].op_class is OpClass.CONTROL_FLOW


def test_an_operator_that_is_not_known_is_planned_with_its_bytes():
    graph = graph_of(one_operator("CUSTOM:Mystery", "1x8", "4x4", "1x3", None))
    assert graph.unknown_ops == {"CUSTOM:Mystery": 1}
    assert [access.bytes for access in (*graph.ops[0].reads, *graph.ops[0].writes)] == [32, 64, 12]


def test_quantised_tensors_keep_their_type_and_floats_can_be_planned_narrower():
    model, main = started()
    x = main.input("1x16", "int8", name="x", scale=(0.1,))
    main.last("DEQUANTIZE", [x], "1x16", name="y")
    graph = graph_of(model, precision="fp16")
    assert (graph.tensors["x"].bytes, graph.tensors["y"].bytes) == (16, 32)
    assert graph.ops[0].op_class is OpClass.ELEMENTWISE


@pytest.mark.slow
def test_random_models_are_read_and_every_tensor_is_written_before_it_is_read():
    for seed in range(40):
        graph = graph_of(random_model(seed))
        known = {
            name
            for name, tensor in graph.tensors.items()
            if tensor.kind is not TensorKind.ACTIVATION
        }
        for op in graph.ops:
            assert {access.tensor for access in op.reads} <= known, (seed, op.name)
            known |= {access.tensor for access in op.writes}
        assert set(graph.outputs) <= known


# What is refused.


def refused(tmp_path, model, read=load):
    path = tmp_path / "bad.tflite"
    path.write_bytes(model if isinstance(model, bytes) else model.bytes())
    return complaint(path, read)


def exported(path):
    return export_model(path, scratch="none")


def plain():
    return one_operator("RELU", "1x8", "", "1x8", None)


def test_what_is_no_file_of_tensorflow_lite_is_refused(tmp_path):
    for content in (b"", b"TFL3", b"hello, this is no network", bytes(100)):
        assert "is not a TensorFlow Lite file" in refused(tmp_path, content)
    assert "cannot be read (No such file" in complaint(tmp_path / "absent.tflite")
    (tmp_path / "folder.tflite").mkdir()
    assert "is not a file" in complaint(tmp_path / "folder.tflite")


def test_options_that_a_file_with_fixed_shapes_cannot_have_are_refused(tmp_path):
    path = plain().save(tmp_path)
    assert "convert the model for a batch of 4" in complaint(path, batch=4)
    assert load(path, batch=1).batch == 1
    assert "shapes in a .tflite file are fixed" in complaint(path, dims={"n": 2})
    assert "holds no training step" in complaint(path, training=True)
    assert "there is no precision 'fp8'" in complaint(path, precision="fp8")


def test_every_beginning_of_a_file_is_refused_in_one_line():
    data = plain().bytes()
    whole = parse_model(data)
    end = len(data.rstrip(b"\0"))
    for length in range(end):
        with pytest.raises(ModelError) as caught:
            parse_model(data[:length])
        assert "\n" not in str(caught.value)
    assert len(parse_model(data[: end + 4]).subgraphs) == len(whole.subgraphs)


def test_distances_beyond_the_file_are_refused(tmp_path):
    data = bytearray(plain().bytes())
    for distance in (0, 3, len(data), 2**31 - 1, 2**32 - 1):
        struct.pack_into("<I", data, 0, distance)
        assert "is cut off or damaged at byte" in refused(tmp_path, bytes(data))


def test_models_without_a_network_are_refused(tmp_path):
    assert "holds no network" in refused(tmp_path, Model())
    empty = Model()
    empty.subgraph()
    assert "holds no network" in refused(tmp_path, empty)


def test_indices_of_what_is_not_there_are_refused(tmp_path):
    model = plain()
    model.subgraphs[0].outputs = [17]
    assert "subgraph 0 names tensor 17, but there are 2" in refused(tmp_path, model)
    model = plain()
    model.subgraphs[0].op("RELU", [99], [1])
    assert "operator 1 of subgraph 0 (RELU) names tensor 99" in refused(tmp_path, model)
    model = plain()
    model.subgraphs[0].tensor("1", buffer=55)
    assert "tensor 2 of subgraph 0 names buffer 55" in refused(tmp_path, model)
    model = plain()
    model.subgraphs[0].op("IF", [0, 0], [1], {0: 1, 1: 7})
    assert "names subgraph 1, but there are 1" in refused(tmp_path, model)
    model.subgraphs[0].operators.pop()
    model.subgraphs[0].op("WHILE", [0], [1])
    assert "does not say which subgraphs it runs" in refused(tmp_path, model)


def test_what_is_written_later_cannot_be_read_and_what_never_is_written_is_named(tmp_path):
    """Converters leave tensors that nothing writes, which kernels read for their shape or not at
    all."""
    model = plain()
    main = model.subgraphs[0]
    lost = main.tensor("1x8", name="lost")
    main.last("TANH", [lost])
    graph = graph_of(model)
    assert graph.notes == (
        "tensor 'lost' is read and nothing writes it: it is planned as a constant",
    )
    assert graph.tensors["lost"].kind is TensorKind.WEIGHT
    main.op("RELU", [0], [lost])
    assert "reads tensor 'lost' before another writes it" in refused(tmp_path, model)


def test_sizes_that_a_network_computes_cost_nothing():
    """As converters write a flattening of a batch of any size."""
    model, main = started()
    x = main.input("1x4x4x2")
    shape = main.out("SHAPE", [x], "4", None, dtype="int32")
    ends = (main.ints(0), main.ints(1), main.ints(1))
    batch = main.out("STRIDED_SLICE", [shape, *ends], "", {4: 1}, dtype="int32")
    sizes = main.out("PACK", [batch, main.ints(32)], "2", None, dtype="int32")
    flat = main.out("RESHAPE", [x, sizes], "1x32", {})
    main.last("RELU", [flat])
    assert classes(graph_of(model)) == "shape shape shape view elementwise"


def test_handles_of_variables_cost_nothing():
    model, main = started()
    handle = main.out("VAR_HANDLE", [], "1", {0: "", 1: "state"}, dtype="resource")
    main.last("READ_VARIABLE", [handle], "1x8", {})
    graph = graph_of(model)
    assert classes(graph) == "shape movement"
    assert not graph.unknown_ops


@pytest.mark.parametrize("reads_first", [False, True])
def test_reads_and_assignments_of_a_variable_keep_their_order(reads_first):
    model, main = started()
    names = {0: "", 1: "state"}
    x = main.input("1x4x4x8")
    initial = model.subgraph()
    handle = initial.out("VAR_HANDLE", [], "1", names, dtype="resource")
    zeros = initial.tensor("1x4x4x8", "float32", 0)
    initial.op("ASSIGN_VARIABLE", [handle, zeros], [], {})
    main.op("CALL_ONCE", [], [], {0: 1})
    handles = [main.out("VAR_HANDLE", [], "1", names, dtype="resource") for _ in "ra"]

    def read():
        return main.out("READ_VARIABLE", handles[:1], "1x4x4x8", {})

    old = read() if reads_first else None
    made = main.conv(main.conv(x, 64), 8)
    main.op("ASSIGN_VARIABLE", [handles[1], made], [], {})
    main.outputs = [main.conv(old if reads_first else read(), 8)]
    jobs = {job.kind: job for job in lm.lower([graph_of(model)], npu()).jobs}
    reader, writer = jobs["READ_VARIABLE"], jobs["ASSIGN_VARIABLE"]
    (written,) = (operand.tensor for operand in writer.writes)
    assert (reader.reads[0].tensor == written) != reads_first
    assert "CALL_ONCE" not in jobs
    plan = verified([graph_of(model)], npu())
    assert written in {tensor.name for tensor in plan.tensors if tensor.is_output}


def test_subgraphs_that_run_in_a_circle_are_refused(tmp_path):
    model = plain()
    other = model.subgraph()
    c, x = other.input("1", "bool"), other.input("1x8")
    other.last("IF", [c, x], "1x8", {0: 1, 1: 1})
    main = model.subgraphs[0]
    condition = main.input("1", "bool")
    main.last("IF", [condition, 0], "1x8", {0: 1, 1: 1})
    assert "subgraph 1 runs itself" in refused(tmp_path, model, exported)


def test_subgraphs_that_run_too_often_are_refused(tmp_path, monkeypatch):
    """Every one runs the next twice, thirty deep: a thousand million runs."""
    monkeypatch.setattr("loadmaster.integrations.tflite.lifetimes.MOST_VISITS", 10_000)
    model = Model()
    for number in range(31):
        subgraph = model.subgraph()
        c, x = subgraph.input("1", "bool"), subgraph.input("1x8")
        subgraph.outputs = [
            subgraph.out("IF", [c, x], "1x8", {0: number + 1, 1: number + 1}) if number < 30 else x
        ]
    assert "operators run, those of subgraphs each time" in refused(tmp_path, model, exported)


def test_sizes_that_nothing_can_hold_are_refused(tmp_path):
    for shape, words in (
        ((2**30, 2**10), "TFLM counts below 2^31"),
        ((2**31 - 1,) * 3, "TFLM counts below 2^31"),
        ((-1, 4), "negative dimension"),
        ((2**28,), "the arena would take 2147483648 bytes"),
    ):
        model, main = started()
        main.last("RELU", [main.input(shape)])
        assert words in refused(tmp_path, model, exported)
    huge = one_operator("RELU", "x".join([str(2**31 - 1)] * 3), "", "1", None)
    assert "2^62 bytes or more" in refused(tmp_path, huge)


def test_weights_outside_of_the_file_are_read_past_and_not_exported(tmp_path):
    model = one_operator("MUL", "1x8", "1x8", "1x8", {0: 0})
    model.buffers[1] = {1: Number("Q", 2**33), 2: Number("Q", 32)}
    assert graph_of(model).bytes_of(TensorKind.WEIGHT) == 32
    assert "has weights outside of the FlatBuffer" in refused(tmp_path, model, exported)


def test_constants_behind_the_flatbuffer_are_read_whatever_the_files_size(tmp_path, monkeypatch):
    """Files above 2 GiB end with their weights."""
    model = one_operator("MEAN", "1x4x6x8", "", "1x8", {0: 0})
    main = model.subgraphs[0]
    main.operators.clear()
    main.op("MEAN", [0, main.ints(1, 2)], main.outputs, {0: 0})
    content = model.buffers[-1][0]
    path = tmp_path / "net.tflite"
    path.write_bytes(model.bytes())
    inside = load(str(path)).ops[0]
    assert inside.axes == (0, 1)
    at = 2
    for _ in range(2):
        model.buffers[-1] = {1: Number("Q", at), 2: Number("Q", len(content))}
        at = len(model.bytes())
    path.write_bytes(model.bytes() + content + bytes(1000))
    assert load(str(path)).ops[0] == inside
    monkeypatch.setattr("loadmaster.workloads.frontends.tflite.model.LARGEST_FILE", at)
    assert load(str(path)).ops[0].macs == inside.macs


def test_a_newer_root_is_not_exported(tmp_path):
    data = plain().bytes({12: Number("i", 1)})
    assert "has field 12 in its root" in refused(tmp_path, data, exported)
    assert "has version 7 of the format" in refused(tmp_path, plain().bytes({0: Number("I", 7)}))


@pytest.mark.slow
def test_many_pointers_to_one_subgraph_do_not_multiply_its_size(tmp_path):
    """Ten thousand names of one vector of ten thousand tables are 10^8 reads, from a file of 80
    KB."""
    inner = plain()
    for _ in range(2000):
        inner.subgraphs[0].tensor("1")
    old = inner.bytes()
    position = next(iter(parse_model(old).root.tables(2))).position
    fields = {0: Number("I", 3), 1: [{3: i(19)}], 2: [Existing(position)] * 20_000, 4: [{}]}
    assert "points to the same bytes from too many places" in refused(
        tmp_path, write_before(old, fields, IDENTIFIER)
    )


def test_long_and_strange_names_stay_on_one_line():
    model, main = started()
    x = main.input("1x4", name="a\nb\x00" + "c" * 100_000)
    main.last("CUSTOM:two\nlines", [x], "1x4")
    graph = graph_of(model)
    assert "\n" not in graph.inputs[0]
    assert len(graph.inputs[0]) < 5000
    assert graph.ops[0].kind == "CUSTOM:two lines"


def refusal(use, path):
    """What is said against a file; nothing if it is taken."""
    try:
        use(path)
    except LoadmasterError as error:
        return str(error)
    return ""


def test_operands_that_are_missing_are_named_or_cost_the_cut(tmp_path):
    shape = "1x4x4x2"
    assert op_of("PAD", shape, "", shape, {}).axes == ()
    text = refused(tmp_path, one_operator("CONV_2D", shape, "", shape, CONV))
    assert "(CONV_2D): operand 1 is missing: the file is damaged" in text


@pytest.mark.slow
def test_damaged_files_are_refused_in_one_line_or_read(tmp_path):
    """Bytes changed, cut out, doubled and swapped: never anything but one of our errors."""
    rng = random.Random(0)
    files = [random_model(seed).bytes() for seed in range(12)]
    read = refusals = 0
    for _ in range(int(1500 * FUZZ)):
        data = bytearray(rng.choice(files))
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data))
            kind = rng.randrange(5)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                data[at : at + 4] = struct.pack(
                    "<I", rng.choice((0, 1, 4, 2**31, 2**32 - 1, rng.randrange(2**16)))
                )
            elif kind == 2:
                del data[at : at + rng.randint(1, 40)]
            elif kind == 3:
                data[at:at] = data[at : at + rng.randint(1, 40)]
            else:
                other = rng.randrange(len(data))
                data[at], data[other] = data[other], data[at]
        path = tmp_path / "fuzz.tflite"
        path.write_bytes(data)
        for use in (load, lambda name: lifetimes(parse_model(name.read_bytes())), exported):
            complaint = refusal(use, path)
            read += not complaint
            refusals += bool(complaint)
            assert "\n" not in complaint
    assert refusals > 50 * FUZZ
    assert read > 50 * FUZZ


def test_a_writer_of_flatbuffers_aligns_every_number():

    table = {0: b(7), 1: Number("Q", 2**40), 2: "name", 5: Numbers("q", (1, -2)), 9: i(-5)}
    table[10] = [{3: b(1)}]
    root = Flatbuffer(write_before(b"old", table, b"TEST")).root
    numbers = root.number(0, "b"), root.number(1, "Q"), root.numbers(5, "q"), root.number(9)
    assert (numbers, root.text(2)) == ((7, 2**40, (1, -2), -5), "name")
    assert [inner.number(3, "b") for inner in root.tables(10)] == [1]
    assert root.at(4) is None
    assert (root.at(1) or 1) % 8 == 0
    assert (root.at(9) or 1) % 4 == 0


@pytest.mark.parametrize(
    ("kind", "weights", "options", "shape"),
    [
        ("RELU", "", None, "1x8x9x16"),
        ("ADD", "1x1x1x16", {0: 0}, "1x8x9x16"),
        ("SOFTMAX", "", {}, "1x8x9x16"),
        ("CONV_2D", "5x3x3x16", {0: SAME, 1: 2, 2: 1}, "1x8x5x5"),
        ("CONV_2D", "5x3x3x16", {0: VALID, 1: 1, 2: 2, 5: 2}, "1x2x7x5"),
        ("DEPTHWISE_CONV_2D", "1x3x3x32", {0: VALID, 1: 1, 2: 1}, "1x6x7x32"),
        ("MAX_POOL_2D", "", {0: VALID, 1: 2, 2: 2, 3: 2, 4: 2}, "1x4x4x16"),
    ],
)
def test_a_shape_that_the_converter_left_open_is_worked_out(kind, weights, options, shape):
    model = one_operator(kind, "1x8x9x16", weights, "", options)
    main = model.subgraphs[0]
    main.last("ABS", main.outputs, (), name="z")
    graph = graph_of(model)
    assert graph.tensors["y"].shape == graph.tensors["z"].shape == sizes(shape)
    assert graph.ops[0].writes[0].bytes == 4 * np.prod(sizes(shape))


@pytest.mark.parametrize(
    ("kind", "shape", "weights", "options", "missing"),
    [
        ("CONV_2D", "-", "5x3x3x16", CONV, "x0"),
        ("MAX_POOL_2D", "-", "", {0: SAME, 1: 2, 2: 2, 3: 2, 4: 2}, "x0"),
        ("RESIZE_BILINEAR", "1x8x8x16", "", {}, "y"),
        ("BATCH_MATMUL", "1x8x8", "1x8x8", {}, "y"),
    ],
)
def test_a_shape_that_is_not_to_be_known_is_named(kind, shape, weights, options, missing):
    model = one_operator(kind, shape, weights, "", options)
    with pytest.raises(ModelError, match=f"the shape of tensor '{missing}' is not in the file"):
        graph_of(model)


def test_a_bias_may_have_as_many_dimensions_as_the_result():
    few, many = (
        op_of("CONV_2D", "1x4x4x2", f"8x3x3x2 {bias}", "1x4x2x8", CONV) for bias in ("8", "1x1x1x8")
    )
    assert (few.macs, few.axes) == (many.macs, many.axes)


@pytest.mark.parametrize("kind", ["CONV_2D", "MAX_POOL_2D", "DEPTH_TO_SPACE"])
@pytest.mark.parametrize("shapes", [("4x4x2", "1x4x4x2"), ("1x4x4x2", "1x4x4x1x2")])
def test_images_of_another_number_of_dimensions_are_refused_by_name(tmp_path, kind, shapes):
    weights = "2x1x1x2" if kind == "CONV_2D" else ""
    text = refused(tmp_path, one_operator(kind, shapes[0], weights, shapes[1], CONV))
    name = "x0" if shapes[0] == "4x4x2" else "y"
    assert f"tensor '{name}' has" in text
    assert "dimensions, not 4: the file is damaged" in text


@pytest.mark.parametrize(
    ("kind", "operands", "result", "options"),
    [
        ("CONCATENATION", "5x3x2", "4x3x5x1", {0: 0}),
        ("RESIZE_BILINEAR", "4x4x5x2", "4x2x4x5x1", {}),
        ("RESIZE_NEAREST_NEIGHBOR", "3x2x1x3", "2", {}),
        ("SOFTMAX", "4x4x4x1x2", "5x1x3x4", {}),
        ("MAX_POOL_2D", "3x2x2x5x5", "", {}),
        ("TRANSPOSE_CONV", "4 2x2x2x2 1x4x4x2", "1x8x8x2", {}),
        ("DEPTH_TO_SPACE", "1x4x4x4", "1x8x8x1", {}),
    ],
)
def test_an_operator_whose_tensors_do_not_fit_together_is_damaged(
    tmp_path, kind, operands, result, options
):
    text = refused(tmp_path, one_operator(kind, operands, "", result, options))
    assert f"bad.tflite: operator '{kind}_0' ({kind}): its " in text
    assert "the file is damaged, convert the model again" in text
    assert "defect" not in text
