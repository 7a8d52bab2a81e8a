"""Operators of TensorFlow Lite that borrow a rule of ONNX, where their meaning differs: which part
of an operand a part of the result needs, by definition."""

import itertools
import math

import pytest
from tests.support.onnx_builder import needed
from tests.support.tflite_models import graph_of, started

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.tflite import operators
from loadmaster.workloads.window import operand_box


def indexed(kind, shape, index, result, options, scalar=False):
    """An operator of an input and a constant of whole numbers."""
    model, main = started()
    x = main.input(shape, name="x")
    constant = main.tensor(() if scalar else (len(index),), "int32", index)
    main.last(kind, [x, constant], result, options)
    return graph_of(model).ops[0]


@pytest.mark.parametrize("kind", ["ARG_MAX", "ARG_MIN"])
@pytest.mark.parametrize(
    ("axis", "result", "part"),
    [(-1, "3x8", "1-2 3-5 0-19"), (1, "3x19", "1-2 0-8 3-5"), (0, "8x19", "0-3 1-2 3-5")],
)
def test_the_axis_of_the_largest_is_an_operand_and_is_not_kept(kind, axis, result, part):
    op = indexed(kind, (3, 8, 19), [axis], result, {0: 2}, scalar=True)
    assert op.elements == 3 * 8 * 19
    assert op.axes == (0, 1)
    assert needed(op.reads[0], "1-2 3-5", "3x8x19") == part


def test_elements_are_gathered_along_the_axis_that_is_an_option():
    op = indexed("GATHER", (4, 9, 5), [3, 4, 5], (4, 3, 5), {0: 1})
    assert needed(op.reads[0], "0-2 1-3 0-5", "4x9x5") == "0-2 4-6 0-5"
    batched = indexed("GATHER", (1, 9, 5), [3], (1, 9, 5), {0: 1, 1: 1})
    assert batched.reads[0].windows == ()


def source_rows(kind, before, after, row, corners, centres):
    """First and last row of the operand, as the kernels of TensorFlow Lite define them."""
    scale = (before - 1) / (after - 1) if corners and after > 1 else before / after
    if kind == "RESIZE_NEAREST_NEIGHBOR":
        at = (row + 0.5) * scale if centres else row * scale
        nearest = min(math.floor(at + 0.5 * corners), before - 1)
        return nearest, nearest
    at = (row + 0.5) * scale - 0.5 if centres else row * scale
    first = math.floor(at)
    return max(first, 0), min(math.ceil(at), before - 1)


@pytest.mark.parametrize("kind", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
@pytest.mark.parametrize(("corners", "centres"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(("before", "after"), [(4, 8), (5, 13), (9, 4), (3, 3)])
def test_resizing_reads_the_neighbours_of_its_kernel(kind, corners, centres, before, after):
    first = 2 if kind == "RESIZE_BILINEAR" else 0
    op = indexed(
        kind, (1, before, 4, 2), [after, 4], (1, after, 4, 2), {first: corners, first + 1: centres}
    )
    if not op.reads or not op.reads[0].windows:
        assert before == after
        return
    for start, end in itertools.combinations(range(after + 1), 2):
        rows = (
            source_rows(kind, before, after, row, corners, centres) for row in range(start, end)
        )
        firsts, lasts = zip(*rows, strict=True)
        box = (0, 1), (start, end), (0, 4), (0, 2)
        low, high = operand_box(op.reads[0].windows, box, (1, before, 4, 2))[1]
        assert low <= min(firsts)
        assert high > max(lasts)
        assert high - low <= max(lasts) - min(firsts) + 3


@pytest.mark.parametrize(("padding", "after"), [(0, 12), (1, 13)])
def test_a_transposed_convolution_has_the_strides_and_the_padding_of_its_options(padding, after):
    before, taps, stride = 4, 4, 3
    model, main = started()
    size = main.ints(1, after, after, 5)
    weight = main.tensor((5, taps, taps, 6), data=1, name="w")
    x = main.input((1, before, before, 6), name="x")
    options = {0: padding, 1: stride, 2: stride}
    main.last("TRANSPOSE_CONV", [size, weight, x], (1, after, after, 5), options)
    op = graph_of(model).ops[0]
    assert op.macs == before**2 * taps**2 * 6 * 5
    total = max(0, (before - 1) * stride + taps - after)
    assert op.reads[0].windows
    for start, end in itertools.combinations(range(after + 1), 2):
        used = [
            row
            for row in range(before)
            if any(start <= row * stride + tap - total // 2 < end for tap in range(taps))
        ]
        low, high = operand_box(
            op.reads[0].windows, ((0, 1), (start, end), (0, after), (0, 5)), (1, before, before, 6)
        )[1]
        assert (low, high) == (min(used), max(used) + 1)


def test_a_condition_of_one_dimension_chooses_rows():
    model, main = started()
    operands = [main.input("4", "bool", name="c"), main.input("4x4"), main.input("4x4")]
    main.last("SELECT", operands, "4x4")
    reads = graph_of(model).ops[0].reads
    assert [bool(read.windows) for read in reads] == [False, True, True]


def test_an_exception_of_a_rule_tells_what_did_not_fit(monkeypatch):
    def broken(_):
        raise IndexError("tuple index out of range")

    monkeypatch.setitem(operators._RULES, "ARG_MAX", broken)
    text = (
        r"'ARG_MAX_0' \(ARG_MAX\): its tensors of shapes \[\(2, 3\), \(1,\), \(2,\)\] and its"
        r" options do not fit together \(IndexError: .* or report it with the file"
    )
    with pytest.raises(ModelError, match=text):
        indexed("ARG_MAX", (2, 3), [1], (2,), {0: 2})
