"""ONNX Runtime's own operators: what its quantiser, its optimiser and its layout transformation
write.

Shapes and types of those that run on a CPU were compared with what ONNX Runtime 1.31 returns;
arithmetic is worked out by hand.
"""

import math

import numpy as np
import pytest
from onnx import TensorProto
from tests.support.needs import FIXTURES
from tests.support.onnx_builder import (
    absent,
    constants,
    graph_of,
    info,
    node,
    only,
    operator,
    shapes,
    sizes,
)

from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.graph import OpClass
from loadmaster.workloads.window import SUMMED

NCHWC = "com.microsoft.nchwc"
TYPES = {"u8": "UINT8", "i8": "INT8", "f32": "FLOAT", "i32": "INT32", "bool": "BOOL"}
POOL = "kernel_shape=[3,3],strides=[2,2]"


def operand(text):
    """Of an operand: its name, if it is the scale ``s`` or the zero point ``z``, which are known,
    or missing; else its type and shape, and whether it is a constant, which ``!`` says."""
    if ":" not in text:
        return text.strip("-")
    dtype, _, shape = text.strip("!").partition(":")
    return TensorProto.DataType.Value(TYPES[dtype]), sizes(shape), text[0] == "!"


def number(text):
    """A sum of products."""
    return sum(math.prod(map(int, term.split("*"))) for term in text.split("+"))


def rows(table):
    """Kind, operands, attributes, shapes of the results, and class, multiply-accumulates, elements
    and bits of each operator."""
    for line in " ".join(table.split()).replace("POOL", POOL).split(";"):
        text, operands, shapes, work = line.split(" | ")
        kind, attributes = operator(text)
        own, *numbers = work.split()
        yield (
            kind,
            [operand(each) for each in operands.split()],
            attributes,
            [sizes(each) for each in shapes.split()],
            (own, *map(number, numbers)),
        )


CASES = """
    QLinearAveragePool<POOL,pads=[1,1,1,1]> | u8:1x4x9x9 s z s z | 1x4x5x5 | reduction 0 100*9 8;
    QLinearAveragePool<POOL,channels_last=1> | u8:1x9x9x4 s z s z | 1x4x4x4 | reduction 0 64*9 8;
    NhwcMaxPool<POOL> | u8:1x9x9x4 | 1x4x4x4 | reduction 0 64*9 8;
    QLinearGlobalAveragePool | u8:1x4x9x9 s z s z | 1x4x1x1 | reduction 0 324 8;
    QLinearGlobalAveragePool<channels_last=1> | u8:1x9x9x4 s z s z | 1x1x1x4 | reduction 0 324 8;
    QLinearAdd | u8:2x3x4 s z u8:3x1 s z s z | 2x3x4 | elementwise 0 24 8;
    QLinearMul | u8:3x1 s z u8:2x3x4 s z s z | 2x3x4 | elementwise 0 24 8;
    QLinearSigmoid | u8:2x3 s z s z | 2x3 | elementwise 0 6 8;
    QLinearLeakyRelu | u8:2x3 s z s z | 2x3 | elementwise 0 6 8;
    QLinearWhere | bool:3 u8:2x3 s z u8:1x3 s z s z | 2x3 | elementwise 0 6 8;
    QLinearConcat<axis=-1> | s z u8:2x3 s z u8:2x5 s z | 2x8 | movement 0 0 8;
    QLinearSoftmax<axis=-1,opset=13> | u8:2x3 s z s z | 2x3 | reduction 0 30 8;
    QGemm | u8:2x3 s z !u8:3x5 s z - s z | 2x5 | product 30 0 8;
    QGemm<transB=1> | u8:2x3 s z !u8:5x3 s z | 2x5 | product 30 0 8;
    QLinearConv<channels_last=1>
        | u8:1x9x9x4 s z !u8:6x4x3x3 s z s z | 1x7x7x6 | product 49*6*36 0 8;
    NhwcConv | f32:1x9x9x4 !f32:6x4x3x3 | 1x7x7x6 | product 49*6*36 0 32;
    DynamicQuantizeMatMul | f32:2x3x4 !u8:4x5 s z | 2x3x5 | product 120 24 8;
    MatMulIntegerToFloat | u8:2x3x4 !u8:4x5 s s z z | 2x3x5 | product 120 0 8;
    DynamicQuantizeLSTM<hidden_size=4> | f32:5x2x3 !i8:1x3x16 !i8:1x4x16 - - - - - s z s z
        | 5x1x2x4 1x2x4 1x2x4 | product 5*2*16*7 30+40+2*16*10 8;
    QAttention<num_heads=2> | u8:2x5x8 !u8:8x24 !f32:24 s s - z z f32:2x2x2x3x4
        | 2x5x8 2x2x2x8x4 | product 10*8*24+2*2*2*5*8*4 5*2*2*5*8 8;
    QEmbedLayerNormalization
        | i32:2x5 i32:2x5 !u8:9x8 !u8:7x8 !u8:2x8 !u8:8 !u8:8 - s s s s s z z z z z
        | 2x5x8 2 | reduction 0 5*80 8;
    Attention<num_heads=2> | f32:2x5x8 !f32:8x24 | 2x5x8 | product 1920+800 500 32;
    LinearAttention<q_num_heads=2,kv_num_heads=2>
        | f32:2x5x8 f32:2x5x8 f32:2x5x12 - f32:2x5x2 f32:2x5x2
        | 2x5x12 2x2x4x6 | product 3*2*2*5*24 2*2*5*24+2*2*5*2*6 32;
    CausalConvWithState | f32:2x4x9 !f32:4x1x3 | 2x4x9 2x4x2 | product 2*4*9*3 0 32;
    Gelu | f32:2x3 | 2x3 | elementwise 0 6 32;
    Trilu | f32:3x3 | 3x3 | movement 0 0 32
"""
CASES = list(rows(CASES))


def parts_of(kind, operands, outputs, attrs, domain="com.microsoft"):
    """One operator, its inputs, its results and constants."""
    inputs, weights, names = [], constants(s=0.1, z=np.uint8(3)), []
    for index, each in enumerate(operands):
        if isinstance(each, str):
            names.append(each)
            continue
        dtype, shape, known = each
        names.append(f"x{index}")
        if known:
            weights.append(absent(names[-1], shape, dtype))
        else:
            inputs.append(info(names[-1], shape, dtype))
    results = [f"y{index}" for index in range(outputs)]
    return [node(kind, names, results, domain=domain, **attrs)], inputs, results, weights


def graph_with(*given):
    return graph_of(*parts_of(*given), opset=17)


def operator_of(text, operands, domain="com.microsoft"):
    kind, attributes = operator(text)
    return only(graph_with(kind, map(operand, operands.split()), 1, attributes, domain), kind)


@pytest.mark.parametrize(
    ("kind", "operands", "attrs", "shapes", "work"),
    CASES,
    ids=[f"{case[0]}-{index}" for index, case in enumerate(CASES)],
)
def test_operators_of_onnx_runtime_have_their_shapes_and_arithmetic(
    kind, operands, attrs, shapes, work
):
    graph = graph_with(kind, operands, len(shapes), attrs)
    op = only(graph, kind)
    assert [graph.tensors[name].shape for name in graph.outputs] == shapes
    assert (op.op_class.value, op.macs, op.elements, op.bits) == work


def test_types_of_results_follow_the_quantised_operands():
    for more, dtype in ((" - s z", "uint8"), ("", "float32")):
        operands = map(operand, f"u8:2x3 s z !u8:3x5 s z{more}".split())
        assert graph_with("QGemm", operands, 1, {}).tensors["y0"].dtype == dtype


BLOCKED = """
    ReorderInput | f32:1x5x6x7 | 1x8x6x7 | movement 0 0;
    ReorderInput<channels_last=1> | f32:1x6x7x5 | 1x8x6x7 | movement 0 0;
    ReorderOutput<channels=5> | f32:1x8x6x7 | 1x5x6x7 | movement 0 0;
    ReorderOutput<channels=5,channels_last=1> | f32:1x8x6x7 | 1x6x7x5 | movement 0 0;
    Conv<strides=[1,1]> | f32:1x8x6x7 !f32:16x8x3x3 | 1x16x4x5 | product 16*72*20 0;
    MaxPool<POOL> | f32:1x8x6x6 | 1x8x2x2 | reduction 0 8*4*9;
    GlobalAveragePool | f32:1x8x6x6 | 1x8x1x1 | reduction 0 288;
    Upsample<scales=[1,1,2,3]> | f32:1x8x6x6 | 1x8x12x18 | movement 0 0
"""


@pytest.mark.parametrize(("kind", "operands", "attrs", "shapes", "work"), list(rows(BLOCKED)))
def test_operators_on_blocks_of_channels(kind, operands, attrs, shapes, work):
    graph = graph_with(kind, operands, 1, attrs, NCHWC)
    op = only(graph, kind)
    assert [graph.tensors["y0"].shape] == shapes
    assert (op.op_class.value, op.macs, op.elements) == work


CONVOLUTIONS = 32 * 32 * 32 * 27 + 16 * 16 * 32 * 9 + 2 * (16 * 16 * 32 * 24) + 640


def test_a_file_optimised_for_one_processor_loads_with_its_padded_channels():
    graph = load(FIXTURES / "onnxruntime-blocks.onnx.gz")
    assert graph.macs == CONVOLUTIONS + 2 * 16 * 16 * 32 * 8
    assert not graph.unknown_ops
    assert shapes(graph) == "1x10"


@pytest.mark.parametrize("name", ["onnxruntime-quantised", "onnxruntime-quantised-optimised"])
def test_a_file_quantised_in_operator_format_calculates_in_eight_bits(name):
    graph = load(FIXTURES / f"{name}.onnx.gz")
    assert (graph.macs, graph.precision, graph.unknown_ops) == (CONVOLUTIONS, "int8", {})
    assert {op.bits for op in graph.ops if op.op_class is OpClass.PRODUCT} == {8}
    assert shapes(graph) == "1x10"


def test_a_variant_divides_as_the_standard_operator_that_it_is_like():
    padded = f"AveragePool<{POOL},pads=[1,1,1,1]>"
    plain = operator_of(padded, "f32:1x4x9x9", "")
    quantised = operator_of(f"QLinear{padded}", "u8:1x4x9x9 s z s z")
    assert (quantised.axes, quantised.reads[0].windows) == (plain.axes, plain.reads[0].windows)
    last = f"QLinear{padded}".replace(">", ",channels_last=1>")
    assert operator_of(last, "u8:1x4x9x9 s z s z").axes == ()


def test_a_sum_that_an_activation_follows_is_not_cut_in_parts():
    op = operator_of('FusedGemm<activation="Relu">', "f32:2x8 !f32:8x4 !f32:4")
    assert op.axes == (0, 1)
    assert not any(SUMMED in read.windows for read in op.reads)
