"""Output shapes of common operators of ONNX Runtime's ``com.microsoft`` domain, which the onnx package does not know."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadmaster.workloads.frontends.onnx.types import Node, Shape

Result = tuple[str, Shape]
ShapeRule = Callable[[Node], list[Result]]

MICROSOFT = "com.microsoft"

STANDARD_TWINS = {
    (MICROSOFT, "FusedConv"): "Conv",
    (MICROSOFT, "FusedGemm"): "Gemm",
    (MICROSOFT, "Gelu"): "Gelu",
    (MICROSOFT, "QuantizeLinear"): "QuantizeLinear",
    (MICROSOFT, "DequantizeLinear"): "DequantizeLinear",
    ("", "SimplifiedLayerNormalization"): "RMSNormalization",
}
"""Operators whose shapes follow the rules of a standard one."""


def _like_first(node: Node) -> list[Result]:
    """The first operand's shape; a second output (a residual sum, statistics) is left open."""
    return [(node.operand(0).dtype, node.shape(0))]


def _skip_normalised(node: Node) -> list[Result]:
    """Result, two statistics that inference leaves empty, and the residual sum."""
    first = node.operand(0)
    statistics = (first.dtype, (*first.shape[:-1], 1))
    return [(first.dtype, first.shape), statistics, statistics, (first.dtype, first.shape)]


def _broadcast(*indices: int) -> ShapeRule:
    """Operands ``indices`` broadcast against each other."""
    return lambda node: [(node.operand(0).dtype, tuple(np.broadcast_shapes(*(node.shape(index) for index in indices))))]


def matrix_shapes(node: Node) -> tuple[Shape, Shape]:
    """Shapes of a ``FusedMatMul``'s operands after its transpositions."""
    shapes = []
    for index, letter in enumerate("AB"):
        shape = node.shape(index)
        if node.attrs.get(f"transBatch{letter}") and len(shape) > 2:
            shape = (*shape[1:-1], shape[0], shape[-1])
        if node.attrs.get(f"trans{letter}") and len(shape) > 1:
            shape = (*shape[:-2], shape[-1], shape[-2])
        shapes.append(shape)
    return shapes[0], shapes[1]


def product_shape(a: Shape, b: Shape) -> Shape:
    """Shape of a matrix product by numpy's rules."""
    left, right = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    lead = tuple(np.broadcast_shapes(left[:-2], right[:-2]))
    return lead + ((left[-2],) if len(a) > 1 else ()) + ((right[-1],) if len(b) > 1 else ())


def _fused_matmul(node: Node) -> list[Result]:
    return [(node.operand(0).dtype, product_shape(*matrix_shapes(node)))]


def _float_matmul(node: Node) -> list[Result]:
    return [("float32", product_shape(node.shape(0), node.shape(1)))]


def _matmul_nbits(node: Node) -> list[Result]:
    return [(node.operand(0).dtype, (*node.shape(0)[:-1], node.attrs["N"]))]


def _quantised_gemm(node: Node) -> list[Result]:
    rows = node.shape(0)[1 if node.attrs.get("transA") else 0]
    columns = node.shape(3)[0 if node.attrs.get("transB") else 1]
    return [(node.operand(0).dtype if node.optional(8) else "float32", (rows, columns))]


def _attention(node: Node) -> list[Result]:
    sizes = node.attrs.get("qkv_hidden_sizes")
    width = sizes[2] if sizes else node.shape(1)[1] // 3
    return [(node.operand(0).dtype, (*node.shape(0)[:2], width))]


def _multi_head_attention(node: Node) -> list[Result]:
    query, value = node.shape(0), node.optional(2)
    if len(query) == 5:
        width = query[2] * query[4]
    elif value is None:
        width = query[2]
    else:
        width = value.shape[-1] if len(value.shape) == 3 else value.shape[1] * value.shape[3]
    return [(node.operand(0).dtype, (*query[:2], width))]


def _grouped_attention(node: Node) -> list[Result]:
    batch, steps, width = node.shape(0)
    heads, kv_heads = node.attrs["num_heads"], node.attrs["kv_num_heads"]
    head = width // heads if node.optional(1) else width // (heads + 2 * kv_heads)
    past = node.optional(3)
    cache = (batch, kv_heads, (past.shape[2] if past else 0) + steps, head)
    dtype = node.operand(0).dtype
    return [(dtype, (batch, steps, heads * head)), (dtype, cache), (dtype, cache)]


def _embedding_sum(node: Node) -> list[Result]:
    batch, steps = node.shape(0)
    table = node.operand(2)
    return [(table.dtype, (batch, steps, table.shape[-1])), ("int32", (batch,)), (table.dtype, (batch, steps, table.shape[-1]))]


def _pooled(node: Node) -> list[Result]:
    channels_last = bool(node.attrs.get("channels_last"))
    shape = node.shape(0)
    ones = (1,) * (len(shape) - 2)
    return [(node.operand(0).dtype, (shape[0], *ones, shape[-1]) if channels_last else (*shape[:2], *ones))]


def _quantised_concat(node: Node) -> list[Result]:
    """Operands come in threes (tensor, scale, zero point) after the result's scale and zero point."""
    parts = [node.shape(index) for index in range(2, len(node.inputs), 3)]
    axis = node.attrs["axis"] % len(parts[0])
    total = sum(part[axis] for part in parts)
    return [(node.operand(2).dtype, (*parts[0][:axis], total, *parts[0][axis + 1 :]))]


_SAME = ("FastGelu", "BiasGelu", "QuickGelu", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "RotaryEmbedding", "GroupNorm")
_NORMALISED = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")

CONTRIB_SHAPES: dict[tuple[str, str], ShapeRule] = {
    **{(MICROSOFT, kind): _like_first for kind in _SAME},
    **{(MICROSOFT, kind): _skip_normalised for kind in _NORMALISED},
    **{(MICROSOFT, kind): _broadcast(0, 3) for kind in ("QLinearAdd", "QLinearMul")},
    (MICROSOFT, "BiasAdd"): _broadcast(0, 1),
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
    (MICROSOFT, "MatMulIntegerToFloat"): _float_matmul,
    (MICROSOFT, "DynamicQuantizeMatMul"): _float_matmul,
    (MICROSOFT, "MatMulNBits"): _matmul_nbits,
    (MICROSOFT, "QGemm"): _quantised_gemm,
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "MultiHeadAttention"): _multi_head_attention,
    (MICROSOFT, "GroupQueryAttention"): _grouped_attention,
    (MICROSOFT, "EmbedLayerNormalization"): _embedding_sum,
    (MICROSOFT, "QLinearGlobalAveragePool"): _pooled,
    (MICROSOFT, "QLinearConcat"): _quantised_concat,
}
"""Rules from operands to the types and shapes of the first outputs, by domain and kind."""
