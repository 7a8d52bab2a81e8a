"""Ranges of operands against what operators really read: an element that is poisoned spoils exactly
the results that depend on it."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from tests.support.fuzzing import fuzz
from tests.support.onnx_builder import constants, model, node, operator, sizes
from tests.support.tables import cases

from loadmaster.planning.against.group import reshaped as reshaped_to_check
from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.graph import OpClass
from loadmaster.workloads.window import (
    ALL,
    Window,
    common_box,
    operand_box,
    reshaped_boxes,
    volume,
    whole,
)


def model_of(kind, shapes, known, attributes, opset=17):
    """One operator whose operands are inputs of the network, or known."""
    names = [f"x{i}" for i in range(len(shapes) + len(known))]
    free = [name for i, name in enumerate(names) if i not in known]
    return model(
        [node(kind, names, "y", **attributes)],
        dict(zip(free, shapes, strict=True)),
        "y",
        constants(**{names[i]: array for i, array in known.items()}),
        opset,
        ir_version=9,
    )


def rows_read(op, first, last, extent):
    """Which rows of its first operand a few rows of the result of a resize need."""
    return op.reads[0].windows[2].of(((0, 1), (0, 2), (first, last), (0, 3)), extent)


def spoiled(proto, name, position):
    """Which results change when one element of an input does. Finite numbers, as the evaluator
    multiplies what it does not need by zero."""
    evaluator = ReferenceEvaluator(proto)
    generator = np.random.default_rng(0)
    values = {
        item.name: generator.uniform(
            1.0, 2.0, [d.dim_value for d in item.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for item in proto.graph.input
    }
    with np.errstate(all="ignore"):
        before = evaluator.run(None, values)[0]
        changed = np.zeros(before.shape, dtype=bool)
        for poison in (9.0, -9.0):
            values[name][position] = poison
            changed |= (
                np.abs(evaluator.run(None, values)[0] - before) > 1e-5
            )  # its convolutions round as they please
    return changed


def inside(box, position):
    return all(first <= at < last for (first, last), at in zip(box, position, strict=True))


def case(line):
    """Kind, shapes, constants, attributes, and whether ranges are exact, which ``~`` denies; ``=``
    is before a constant."""
    text, *operands = line.lstrip("~").split()
    kind, attributes = operator(text)
    known = {i: np.array(json.loads(each[1:])) for i, each in enumerate(operands) if each[0] == "="}
    shapes = [sizes(each) for each in operands if each[0] != "="]
    return kind, shapes, known, attributes, line[0] != "~"


def op_of(line, opset=17):
    """The operator of a case."""
    kind, *given, _ = case(line)
    return only_op(model_of(kind, *given, opset))


def only_op(proto):
    (op,) = load(proto).ops
    return op


# The reference leaves out the last channel of LRN's neighbourhood, which the standard counts.
CASES = """
    Conv<strides=[2,1],pads=[1,0,1,1]> 1x3x7x6 4x3x3x2
    Conv<group=2,dilations=[2,1],pads=[2,1,2,1]> 1x4x9x5 6x2x3x3
    Conv<group=4,auto_pad="SAME_UPPER",strides=[2,2]> 2x4x5x5 4x1x3x3 4
    ConvTranspose<strides=[2,2]> 1x2x3x3 2x4x2x2
    ConvTranspose<strides=[2,1],pads=[1,0,0,1]> 1x2x4x5 2x3x3x4 3
    ConvTranspose<dilations=[2,1],strides=[3,1],output_padding=[1,0]> 1x2x4x3 2x2x3x2
    ConvTranspose<strides=[2,2],auto_pad="SAME_UPPER"> 1x2x4x4 2x2x3x3
    MaxPool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]> 1x2x7x7
    AveragePool<kernel_shape=[2,3],strides=[1,2]> 1x2x6x5
    GlobalAveragePool 2x3x4x4
    MatMul 5x4 4x6
    MatMul 2x3x5x4 2x3x4x6
    MatMul 2x3x5x4 3x4x2
    MatMul 2x5x4 4x6
    Gemm<transA=1,transB=1> 4x5 6x4 6
    Add 2x3x4 3x1
    Softmax<axis=-1> 2x3x5
    LayerNormalization<axis=-1> 2x3x8 8 8
    ReduceMean<axes=[1,3],keepdims=0> 2x3x4x5
    Transpose<perm=[2,0,1]> 2x3x4
    Concat<axis=1> 2x3x4 2x2x4
    Pad 2x5 =[1,2,0,1]
    Slice 6x9 =[1,-8] =[6,9] =[0,1]
    ~LRN<size=3> 1x6x2x2
    Concat<axis=-2> 2x2x3 2x1x3 2x4x3
    Expand 3x1x4 =[2,1,5,1]
    ~Tile 2x3x2 =[1,2,1]
    ~Pad<mode="reflect"> 3x5 =[0,2,0,1]
    Slice 6x9 =[1] =[9] =[1] =[3]
    ~Slice 6x9 =[8] =[1] =[1] =[-3]
    Gather<axis=0> 6x3 =-2
    Gather<axis=1> 2x6x3 =[2,3,4]
    ~ArgMax<axis=1,keepdims=0> 2x3x4
    ~Trilu 4x5
    LpNormalization<axis=1> 2x3x4
    Einsum<equation="bij,bjk->bik"> 2x3x4 2x4x5
    Einsum<equation="hjb,jk->bhk"> 3x4x2 4x5
    MatMul 4 2x4x3
    MatMul 3x4 4
    ~DepthToSpace<blocksize=2> 1x8x2x3
    ~SpaceToDepth<blocksize=2> 1x2x4x6
"""
LATER_CASES = """
    ~Attention 2x4x3x4 2x2x5x4 2x2x5x3
    ~Attention 1x2x3x4 1x2x5x4 1x2x5x3 2x3x5
    ~Attention<q_num_heads=4,kv_num_heads=2> 2x3x8 2x5x4 2x5x6
    ~GroupNormalization<num_groups=3> 2x6x2x2 6 6
    ~RMSNormalization 2x3x4 4
    ~RotaryEmbedding 2x3x4x6 2x4x3 2x4x3
    ~RotaryEmbedding<num_heads=3> 2x4x12 2x4x2 2x4x2
"""
LINES = [(*row, opset) for opset, text in ((17, CASES), (23, LATER_CASES)) for row in cases(text)]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "opset"), LINES)
def test_a_range_holds_what_its_results_read_and_nothing_more_than_is_stated(line, opset):
    kind, *given, exact = case(line)
    check_ranges(kind, model_of(kind, *given, opset), exact)


@pytest.mark.parametrize("scale", [0.4, 0.75, 1.5, 2.5])
def test_resizing_rounded_positions_up_before_opset_11_where_it_made_less(scale):
    """As the standard's own example of that version did, and as ONNX Runtime does."""
    scales = np.array([1, 1, scale, 1], np.float32)
    op = only_op(model_of("Resize", [(1, 2, 9, 3)], {1: scales}, {"mode": "nearest"}, 10))
    rounded = np.ceil if scale < 1 else np.floor
    for row in range(int(9 * scale)):
        first, last = rows_read(op, row, row + 1, 9)
        assert first <= min(8, rounded(row / np.float32(scale))) < last


def test_elements_that_a_pad_repeats_move_also_where_it_adds_as_many_as_it_removes():
    assert op_of('Pad<mode="edge"> 2x4x3 =[0,1,0,2,-1,0]').axes == (2,)


@pytest.mark.parametrize("kind", ["Conv", "AveragePool", "LpPool"])
def test_padding_below_nothing_skips_elements_at_the_begin_in_some_runtimes(kind):
    """Windows of two elements, five apart, over nine: ONNX Runtime's pools begin with the second,
    its convolutions with the first."""
    weights = " 1x1x2" if kind == "Conv" else ""
    for extent, stride, needed in ((9, 5, (5, 8)), (6, 3, (3, 5))):
        attributes = f'kernel_shape=[2],strides=[{stride}],auto_pad="SAME_UPPER"'
        op = op_of(f"{kind}<{attributes}> 1x1x{extent}{weights}")
        assert op.reads[0].windows[2].of(((0, 1), (0, 1), (1, 2)), extent) == needed


@pytest.mark.parametrize("unknown", ["axes", "steps"])
def test_a_slice_of_which_something_is_given_later_has_no_ranges(unknown):
    """The file notes the shape of its result."""
    operands = {"starts": [0], "ends": [8], "axes": [0], "steps": [1]}
    del operands[unknown]
    proto = model(
        "t = Slice(x, starts, ends, axes, steps); y = Relu(t)",
        f"float[8,8] x, int64[1] {unknown}",
        "y",
        constants(**operands),
        17,
        value_info="float[4,8] t",
    )
    op, _ = load(proto).ops
    assert not op.axes
    assert not any(read.windows for read in op.reads)


@pytest.mark.parametrize(
    ("results", "opset"), [("y, r, s", 14), ("r, y, s", 14), ("y, r, s, t, u", 9)]
)
def test_statistics_of_a_batch_take_all_of_it(results, opset):
    training = "<training_mode=1>" if opset == 14 else ""
    proto = model(
        f"{results} = BatchNormalization{training}(x, a, b, m, v)",
        "float[2,3,4] x, float[3] a, float[3] b",
        "y",
        "float[3] m, float[3] v",
        opset,
    )
    op = only_op(proto)
    assert op.op_class is OpClass.REDUCTION
    assert op.axes == ((1,) if results[0] == "y" else ())


def test_one_number_normalises_a_batch_without_channels():
    op = op_of("BatchNormalization 4 1 1 1 1")
    assert op.axes == (0,)
    assert {read.tensor for read in op.reads if any(w.axis >= 0 for w in read.windows)} == {"x0"}


def test_an_attention_whose_keys_alone_are_needed_is_not_cut():
    """Rules say how the first result divides."""
    proto = model(
        "t, y, s = Attention(q, k, v, , p, r)",
        "float[2,4,3,4] q, float[2,2,5,4] k, float[2,2,5,4] v, float[2,2,2,4] p, float[2,2,2,4] r",
        "y",
        opset=23,
    )
    assert not only_op(proto).axes


def check_ranges(kind, proto, exact):
    """``exact``: along every dimension the first and last element of the range are really read."""
    graph = load(proto)
    (op,) = [op for op in graph.ops if op.writes and op.writes[0].tensor == "y"]
    shape = graph.tensors["y"].shape
    assert op.axes
    for read in op.reads:
        if read.tensor not in {item.name for item in proto.graph.input}:
            continue
        extent = graph.tensors[read.tensor].shape
        # For every element of the operand, the results that it spoils.
        reach = {position: spoiled(proto, read.tensor, position) for position in np.ndindex(extent)}
        for axis in op.axes:
            step = op.steps[axis] if op.steps else 1
            for first in range(0, shape[axis], step):
                last = min(shape[axis], first + 2 * step)
                box = tuple(
                    (first, last) if d == axis else full for d, full in enumerate(whole(shape))
                )
                needed = operand_box(read.windows, box, extent) if read.windows else whole(extent)
                index = tuple(slice(a, b) for a, b in box)
                used = [position for position, bad in reach.items() if bad[index].any()]
                assert all(inside(needed, position) for position in used), (axis, first)
                # At the edge some taps of a kernel meet padding only.
                if exact and used and not (kind.startswith("Conv") and read.tensor != "x0"):
                    tight = tuple((min(at), max(at) + 1) for at in zip(*used, strict=True))
                    assert needed == tight, (axis, first)


def resized(before, scale, after, coordinates, rounding="floor", mode="nearest", opset=17):
    """A model that resizes rows, by a scale or to a size."""
    none = np.zeros(0, np.float32)
    given = {1: none, 2: none, 3: np.array([1, 2, after, 3])}
    if scale is not None:
        given = {1: none, 2: np.array([1, 1, scale, 1], np.float32)}
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": rounding,
    }
    return model_of("Resize", [(1, 2, before, 3)], given, attributes, opset)


@pytest.mark.slow
@pytest.mark.parametrize(
    "coordinates",
    ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"],
)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    ("before", "scale", "after"),
    [(4, 2.0, None), (9, 0.3, None), (12, None, 3), (5, None, 8), (6, None, 1)],
)
def test_resizing_reads_the_neighbours_of_every_position(mode, coordinates, before, scale, after):
    others = ("round_prefer_floor", "round_prefer_ceil", "ceil") if mode == "nearest" else ()
    for rounding in ("floor", *others):
        proto = resized(before, scale, after, coordinates, rounding, mode)
        if coordinates == "align_corners" and scale == 0.3:
            # Which corners these are depends on who evaluates it.
            assert not only_op(proto).axes
        else:
            check_ranges("Resize", proto, False)


@pytest.mark.parametrize("rounding", ["floor", "ceil"])
@pytest.mark.parametrize(("before", "scale"), [(8, 0.6), (51, 2 / 3), (46, 0.9), (53, 1.1)])
def test_a_resized_range_holds_what_is_nearest_in_floating_point(before, scale, rounding):
    """In float32, 3 / 0.6 is 5, though the number nearest to 0.6 is larger than it."""
    graph = load(resized(before, scale, None, "asymmetric", rounding))
    after = graph.tensors["y"].shape[2]
    positions = getattr(np, rounding)(np.arange(after, dtype=np.float32) / np.float32(scale))
    for row, position in enumerate(np.minimum(positions, before - 1)):
        first, last = rows_read(graph.ops[0], row, row + 1, before)
        assert first <= position < last


def test_a_resized_range_is_as_long_as_its_neighbours_reach():
    """Twice as many rows by the nearest, as PyTorch exports it: two rows of the result need one,
    and by lines between neighbours at most three."""
    plain = "half_pixel", "round_prefer_floor"
    for options, most in ((("asymmetric",), 1), (plain, 3), ((*plain, "linear"), 3)):
        op = only_op(resized(8, 2.0, None, *options))
        found = [rows_read(op, first, first + 2, 8) for first in range(0, 16, 2)]
        assert max(last - first for first, last in found) == most


def test_a_resized_range_has_a_margin_where_positions_are_rounded():
    """In runtimes: on long dimensions."""
    op = only_op(resized(8192, None, 3633, "half_pixel"))
    first, last = rows_read(op, 2430, 2431, 8192)
    assert first <= 5479
    assert last > 5480


def test_a_resize_whose_sizes_are_fractions_is_not_cut():
    assert not only_op(resized(29, 0.25, None, "half_pixel_symmetric", "ceil", opset=19)).axes


def test_a_result_as_long_as_the_operand_at_another_scale_needs_all_of_it():
    """Some runtimes copy it, by the standard rows move."""
    assert not only_op(resized(6, 1.05, None, "asymmetric")).axes


@pytest.mark.parametrize(
    ("line", "opset", "operand", "windows"),
    [
        ("ConvInteger 1x2x4x4 4x2x2x2 1 1", 17, "x3", (ALL,)),
        ("GroupNormalization<num_groups=2> 2x4x2 1 1", 18, "x1", (ALL,)),
        ("Add<axis=1,broadcast=1> 2x3x4x3 3", 6, "x1", ()),
        ("PRelu 2x3x4x3 3", 6, "x1", ()),
    ],
)
def test_operands_of_other_extents_than_the_dimension_are_needed_by_every_piece(
    line, opset, operand, windows
):
    kind, shapes, _, attributes, _ = case(line)
    dtype = "uint8" if kind == "ConvInteger" else "float"
    inputs = {f"x{i}": f"{dtype}{list(shape)}" for i, shape in enumerate(shapes)}
    described = ", ".join(f"{text} {name}" for name, text in inputs.items())
    operators = [node(kind, list(inputs), "y", **attributes)]
    op = only_op(model(operators, described, "y", opset=opset))
    assert {read.tensor: read.windows for read in op.reads}[operand] == windows


@pytest.mark.parametrize(("opset", "axes"), [(11, (0,)), (13, (0, 2))])
def test_softmax_takes_all_dimensions_from_its_axis_on_before_opset_13(opset, axes):
    """Against sums over the numbers that each definition normalises together; the reference
    evaluator knows the later one only."""
    assert op_of("Softmax<axis=1> 2x3x4", opset).axes == axes
    together = np.arange(24).reshape(2, 3, 4)
    together = together // 12 if opset < 13 else together // 12 * 4 + together % 4
    for axis in range(3):
        assert (axis in axes) == np.all(np.diff(together, axis=axis) != 0)


SHAPES = st.sampled_from(
    ["2x3x4", "24", "1x6x4", "12x2", "4x3x2x1", "8x3", "2x2x6", "3x2x2x2"]
).map(sizes)


@fuzz(300)
@given(st.data())
def test_reshaping_a_box_keeps_all_its_elements_and_is_tight_along_whole_dimensions(data):
    """As the verifier does."""
    shape, target = data.draw(SHAPES), data.draw(SHAPES)
    box = st.tuples(*(st.tuples(*[st.integers(0, extent)] * 2).map(sorted) for extent in shape))
    boxes = data.draw(st.lists(box, min_size=1, max_size=4))
    several = reshaped_boxes(np.array(boxes, dtype=np.int64), shape, target)
    for each, own in zip(boxes, several.tolist(), strict=True):
        found = tuple((first, last) for first, last in own)
        numbers = np.arange(24).reshape(shape)[tuple(slice(a, b) for a, b in each)]
        held = np.arange(24).reshape(target)[tuple(slice(a, b) for a, b in found)]
        assert set(numbers.ravel().tolist()) <= set(held.ravel().tolist())
        if volume(each):
            assert found == reshaped_to_check(each, shape, target)
            assert shape != target or list(found) == list(map(tuple, each))


@fuzz(200)
@given(st.data())
def test_ones_in_a_shape_change_nothing(data):
    """Runs of dimensions end where both sides have as many elements, also if a dimension of one
    element comes next."""
    shape, target = list(data.draw(SHAPES)), list(data.draw(SHAPES))
    box = [(extent // 3, extent) for extent in shape]
    plain = reshaped_boxes(np.array([box], dtype=np.int64), shape, target)[0].tolist()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(shape)))
        shape.insert(at, 1)
        box.insert(at, (0, 1))
        target.insert(data.draw(st.integers(0, len(target))), 1)
    found = reshaped_boxes(np.array([box], dtype=np.int64), shape, target)[0].tolist()
    assert [one for one in found if one != [0, 1]] == [one for one in plain if one != [0, 1]]


def test_shapes_without_elements_are_reshaped_to_nothing():
    assert reshaped_boxes(
        np.array([[[0, 0], [0, 3]]], dtype=np.int64), (0, 3), (3, 0)
    ).tolist() == [[[0, 0], [0, 0]]]


def test_a_window_that_needs_padding_only_is_empty():
    assert Window(0, 1, 1, -3, -3).of(((0, 2),), 5) == (0, 0)


RANGES = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda ends: tuple(sorted(ends)))


@given(st.lists(st.tuples(RANGES, RANGES), min_size=1, max_size=3))
def test_the_intersection_of_boxes_has_the_elements_that_both_have(pairs):
    one, other = zip(*pairs, strict=True)
    common = common_box(one, other)
    assert volume(common) == len(elements(one) & elements(other))
    assert not volume(common) or elements(common) == elements(one) & elements(other)


def elements(box):
    return set(itertools.product(*(range(first, last) for first, last in box)))
