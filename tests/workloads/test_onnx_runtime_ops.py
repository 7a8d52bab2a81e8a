"""ONNX Runtime's own operators: what its quantiser, its optimiser and its layout transformation
write.

Shapes and types of those that run on a CPU were compared with what ONNX Runtime 1.31 returns;
arithmetic is worked out by hand.
"""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from tests.support.onnx_builder import absent, constant, constants, graph_of, info, node, only

from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.graph import OpClass
from loadmaster.workloads.window import SUMMED

FIXTURES = Path(__file__).parents[2] / "fixtures"
MS = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
U8, I8, F32, I32, I64, BOOL = (
    getattr(TensorProto, name) for name in ("UINT8", "INT8", "FLOAT", "INT32", "INT64", "BOOL")
)

S, Z = ("s",), ("z",)
"""A scale and a zero point, both known."""


def graph_with(kind, operands, outputs, attrs, domain=MS):
    """One operator; an operand is a type and sizes, with "weight" behind them for a constant."""
    inputs, weights, names = [], [*constants(s=0.1), constant("z", 3, np.uint8)], []
    for index, operand in enumerate(operands):
        name = f"x{index}"
        if operand is None or operand in (S, Z):
            names.append("" if operand is None else operand[0])
            continue
        dtype, *sizes = operand
        if sizes[-1:] == ["weight"]:
            weights.append(absent(name, sizes[:-1], dtype))
        else:
            inputs.append(info(name, sizes, dtype))
        names.append(name)
    results = [f"y{index}" for index in range(outputs)]
    return graph_of(
        [node(kind, names, results, domain=domain, **attrs)], inputs, results, weights, opset=17
    )


POOL = {"kernel_shape": [3, 3], "strides": [2, 2]}
CASES = [
    (
        "QLinearAveragePool",
        [(U8, 1, 4, 9, 9), S, Z, S, Z],
        POOL | {"pads": [1] * 4},
        [(1, 4, 5, 5)],
        ("reduction", 0, 100 * 9, 8),
    ),
    (
        "QLinearAveragePool",
        [(U8, 1, 9, 9, 4), S, Z, S, Z],
        POOL | {"channels_last": 1},
        [(1, 4, 4, 4)],
        ("reduction", 0, 64 * 9, 8),
    ),
    ("NhwcMaxPool", [(U8, 1, 9, 9, 4)], POOL, [(1, 4, 4, 4)], ("reduction", 0, 64 * 9, 8)),
    (
        "QLinearGlobalAveragePool",
        [(U8, 1, 4, 9, 9), S, Z, S, Z],
        {},
        [(1, 4, 1, 1)],
        ("reduction", 0, 324, 8),
    ),
    (
        "QLinearGlobalAveragePool",
        [(U8, 1, 9, 9, 4), S, Z, S, Z],
        {"channels_last": 1},
        [(1, 1, 1, 4)],
        ("reduction", 0, 324, 8),
    ),
    (
        "QLinearAdd",
        [(U8, 2, 3, 4), S, Z, (U8, 3, 1), S, Z, S, Z],
        {},
        [(2, 3, 4)],
        ("elementwise", 0, 24, 8),
    ),
    (
        "QLinearMul",
        [(U8, 3, 1), S, Z, (U8, 2, 3, 4), S, Z, S, Z],
        {},
        [(2, 3, 4)],
        ("elementwise", 0, 24, 8),
    ),
    ("QLinearSigmoid", [(U8, 2, 3), S, Z, S, Z], {}, [(2, 3)], ("elementwise", 0, 6, 8)),
    ("QLinearLeakyRelu", [(U8, 2, 3), S, Z, S, Z], {}, [(2, 3)], ("elementwise", 0, 6, 8)),
    (
        "QLinearWhere",
        [(BOOL, 3), (U8, 2, 3), S, Z, (U8, 1, 3), S, Z, S, Z],
        {},
        [(2, 3)],
        ("elementwise", 0, 6, 8),
    ),
    (
        "QLinearConcat",
        [S, Z, (U8, 2, 3), S, Z, (U8, 2, 5), S, Z],
        {"axis": -1},
        [(2, 8)],
        ("movement", 0, 0, 8),
    ),
    (
        "QLinearSoftmax",
        [(U8, 2, 3), S, Z, S, Z],
        {"axis": -1, "opset": 13},
        [(2, 3)],
        ("reduction", 0, 30, 8),
    ),
    (
        "QLinearReduceMean",
        [(U8, 2, 3, 4), S, Z, S, Z],
        {"axes": [-2], "keepdims": 0},
        [(2, 4)],
        ("reduction", 0, 24, 8),
    ),
    (
        "QGemm",
        [(U8, 2, 3), S, Z, (U8, 3, 5, "weight"), S, Z, None, S, Z],
        {},
        [(2, 5)],
        ("product", 30, 0, 8),
    ),
    (
        "QGemm",
        [(U8, 2, 3), S, Z, (U8, 5, 3, "weight"), S, Z],
        {"transB": 1},
        [(2, 5)],
        ("product", 30, 0, 8),
    ),
    (
        "QLinearConv",
        [(U8, 1, 9, 9, 4), S, Z, (U8, 6, 4, 3, 3, "weight"), S, Z, S, Z],
        {"channels_last": 1},
        [(1, 7, 7, 6)],
        ("product", 49 * 6 * 36, 0, 8),
    ),
    (
        "NhwcConv",
        [(F32, 1, 9, 9, 4), (F32, 6, 4, 3, 3, "weight")],
        {},
        [(1, 7, 7, 6)],
        ("product", 49 * 6 * 36, 0, 32),
    ),
    (
        "DynamicQuantizeMatMul",
        [(F32, 2, 3, 4), (U8, 4, 5, "weight"), S, Z],
        {},
        [(2, 3, 5)],
        ("product", 120, 24, 8),
    ),
    (
        "MatMulIntegerToFloat",
        [(U8, 2, 3, 4), (U8, 4, 5, "weight"), S, S, Z, Z],
        {},
        [(2, 3, 5)],
        ("product", 120, 0, 8),
    ),
    (
        "DynamicQuantizeLSTM",
        [
            (F32, 5, 2, 3),
            (I8, 1, 3, 16, "weight"),
            (I8, 1, 4, 16, "weight"),
            None,
            None,
            None,
            None,
            None,
            S,
            Z,
            S,
            Z,
        ],
        {"hidden_size": 4},
        [(5, 1, 2, 4), (1, 2, 4), (1, 2, 4)],
        ("product", 5 * 2 * 16 * (3 + 4), 30 + 40 + 2 * 16 * 10, 8),
    ),
    (
        "QAttention",
        [
            (U8, 2, 5, 8),
            (U8, 8, 24, "weight"),
            (F32, 24, "weight"),
            S,
            S,
            None,
            Z,
            Z,
            (F32, 2, 2, 2, 3, 4),
        ],
        {"num_heads": 2},
        [(2, 5, 8), (2, 2, 2, 8, 4)],
        ("product", 10 * 8 * 24 + 2 * (2 * 2 * 5 * 8 * 4), 5 * 2 * 2 * 5 * 8, 8),
    ),
    (
        "QEmbedLayerNormalization",
        [(I32, 2, 5), (I32, 2, 5), (U8, 9, 8, "weight"), (U8, 7, 8, "weight"), (U8, 2, 8, "weight")]
        + [(U8, 8, "weight")] * 2
        + [None, S, S, S, S, S, Z, Z, Z, Z, Z],
        {},
        [(2, 5, 8), (2,)],
        ("reduction", 0, 5 * 80, 8),
    ),
    (
        "Attention",
        [(F32, 2, 5, 8), (F32, 8, 24, "weight")],
        {"num_heads": 2},
        [(2, 5, 8)],
        ("product", 1920 + 800, 500, 32),
    ),
    (
        "LinearAttention",
        [(F32, 2, 5, 8), (F32, 2, 5, 8), (F32, 2, 5, 12), None, (F32, 2, 5, 2), (F32, 2, 5, 2)],
        {"q_num_heads": 2, "kv_num_heads": 2},
        [(2, 5, 12), (2, 2, 4, 6)],
        ("product", 3 * 2 * 2 * 5 * 24, 2 * 2 * 5 * (24 + 2 * 6), 32),
    ),
    (
        "CausalConvWithState",
        [(F32, 2, 4, 9), (F32, 4, 1, 3, "weight")],
        {},
        [(2, 4, 9), (2, 4, 2)],
        ("product", 2 * 4 * 9 * 3, 0, 32),
    ),
    ("Gelu", [(F32, 2, 3)], {}, [(2, 3)], ("elementwise", 0, 6, 32)),
    ("Trilu", [(F32, 3, 3)], {}, [(3, 3)], ("movement", 0, 0, 32)),
]


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
    quantised = graph_with(
        "QGemm", [(U8, 2, 3), S, Z, (U8, 3, 5, "weight"), S, Z, None, S, Z], 1, {}
    )
    floating = graph_with("QGemm", [(U8, 2, 3), S, Z, (U8, 3, 5, "weight"), S, Z], 1, {})
    assert [graph.tensors["y0"].dtype for graph in (quantised, floating)] == ["uint8", "float32"]


@pytest.mark.parametrize(
    ("kind", "operands", "attrs", "shape", "work"),
    [
        ("ReorderInput", [(F32, 1, 5, 6, 7)], {}, (1, 8, 6, 7), ("movement", 0, 0)),
        (
            "ReorderInput",
            [(F32, 1, 6, 7, 5)],
            {"channels_last": 1},
            (1, 8, 6, 7),
            ("movement", 0, 0),
        ),
        ("ReorderOutput", [(F32, 1, 8, 6, 7)], {"channels": 5}, (1, 5, 6, 7), ("movement", 0, 0)),
        (
            "ReorderOutput",
            [(F32, 1, 8, 6, 7)],
            {"channels": 5, "channels_last": 1},
            (1, 6, 7, 5),
            ("movement", 0, 0),
        ),
        (
            "Conv",
            [(F32, 1, 8, 6, 7), (F32, 16, 8, 3, 3, "weight")],
            {"strides": [1, 1]},
            (1, 16, 4, 5),
            ("product", 16 * 72 * 20, 0),
        ),
        ("MaxPool", [(F32, 1, 8, 6, 6)], POOL, (1, 8, 2, 2), ("reduction", 0, 8 * 4 * 9)),
        ("GlobalAveragePool", [(F32, 1, 8, 6, 6)], {}, (1, 8, 1, 1), ("reduction", 0, 288)),
        (
            "Upsample",
            [(F32, 1, 8, 6, 6)],
            {"scales": [1, 1, 2, 3]},
            (1, 8, 12, 18),
            ("movement", 0, 0),
        ),
    ],
)
def test_operators_on_blocks_of_channels(kind, operands, attrs, shape, work):
    graph = graph_with(kind, operands, 1, attrs, NCHWC)
    op = only(graph, kind)
    assert graph.tensors["y0"].shape == shape
    assert (op.op_class.value, op.macs, op.elements) == work


CONVOLUTIONS = 32 * 32 * 32 * 27 + 16 * 16 * 32 * 9 + 2 * (16 * 16 * 32 * 24) + 640


def test_a_file_optimised_for_one_processor_loads_with_its_padded_channels():
    graph = load(FIXTURES / "onnxruntime-blocks.onnx.gz")
    assert graph.macs == CONVOLUTIONS + 2 * 16 * 16 * 32 * 8
    assert not graph.unknown_ops
    assert [graph.tensors[name].shape for name in graph.outputs] == [(1, 10)]


@pytest.mark.parametrize("name", ["onnxruntime-quantised", "onnxruntime-quantised-optimised"])
def test_a_file_quantised_in_operator_format_calculates_in_eight_bits(name):
    graph = load(FIXTURES / f"{name}.onnx.gz")
    assert (graph.macs, graph.precision, graph.unknown_ops) == (CONVOLUTIONS, "int8", {})
    assert {op.bits for op in graph.ops if op.op_class is OpClass.PRODUCT} == {8}
    assert [graph.tensors[name].shape for name in graph.outputs] == [(1, 10)]


def test_a_variant_divides_as_the_standard_operator_that_it_is_like():
    pool = POOL | {"pads": [1] * 4}
    plain = only(graph_with("AveragePool", [(F32, 1, 4, 9, 9)], 1, pool, ""), "AveragePool")
    operands = [(U8, 1, 4, 9, 9), S, Z, S, Z]
    quantised = only(graph_with("QLinearAveragePool", operands, 1, pool), "QLinearAveragePool")
    assert (quantised.axes, quantised.reads[0].windows) == (plain.axes, plain.reads[0].windows)
    last = graph_with("QLinearAveragePool", operands, 1, pool | {"channels_last": 1})
    assert only(last, "QLinearAveragePool").axes == ()


def test_a_sum_that_an_activation_follows_is_not_cut_in_parts():
    operands = [(F32, 2, 8), (F32, 8, 4, "weight"), (F32, 4, "weight")]
    op = only(graph_with("FusedGemm", operands, 1, {"activation": "Relu"}), "FusedGemm")
    assert op.axes == (0, 1)
    assert not any(SUMMED in read.windows for read in op.reads)
