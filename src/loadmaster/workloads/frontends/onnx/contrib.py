"""Output shapes of operators of ONNX Runtime's own domains, which the onnx package does not
know."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import onnx

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.types import (
    Node,
    Shape,
    Value,
    broadcast_shapes,
    dtype_name,
)

Result = tuple[str, Shape]
ShapeRule = Callable[[Node], list[Result]]

MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
"""The domain of operators in files that ONNX Runtime optimised for one processor: channels are in
padded blocks."""

CHANNEL_BLOCK = 8
"""Channels in a block with 256-bit vectors; a file does not say which vectors it was optimised
for."""


@dataclass(frozen=True, slots=True)
class Twin:
    """The standard operator with the same shapes as a vendor's variant.

    ``operands`` are the variant's operands that the standard one takes, all if empty.
    ``channels_last`` says that the first operand and the results have their channels in the last
    dimension; where it is false, the attribute of that name may still say so.
    """

    kind: str
    operands: tuple[int, ...] = ()
    channels_last: bool = False


STANDARD_TWINS = {
    ("", "SimplifiedLayerNormalization"): Twin("RMSNormalization"),
    **{
        (MICROSOFT, kind): Twin(kind)
        for kind in (
            "Gelu",
            "QuantizeLinear",
            "DequantizeLinear",
            "Trilu",
            "Range",
            "GatherND",
            "GridSample",
            "Pad",
            "QLinearConv",
        )
    },
    (MICROSOFT, "FusedConv"): Twin("Conv", (0, 1)),
    (MICROSOFT, "NhwcConv"): Twin("Conv", (0, 1), channels_last=True),
    (MICROSOFT, "NhwcFusedConv"): Twin("Conv", (0, 1), channels_last=True),
    (MICROSOFT, "FusedGemm"): Twin("Gemm"),
    (MICROSOFT, "NhwcMaxPool"): Twin("MaxPool", channels_last=True),
    (MICROSOFT, "MaxpoolWithMask"): Twin("MaxPool", (0,)),
    (MICROSOFT, "QLinearAveragePool"): Twin("AveragePool", (0,)),
    (MICROSOFT, "QLinearGlobalAveragePool"): Twin("GlobalAveragePool", (0,)),
    (NCHWC, "Conv"): Twin("Conv", (0, 1)),
    **{
        (NCHWC, kind): Twin(kind)
        for kind in ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
    },
}
"""Operators whose shapes follow the rules of a standard operator, by domain and kind."""


def has_channels_last(node: Node) -> bool:
    """Whether a variant of a standard operator has its channels in the last dimension."""
    twin = STANDARD_TWINS.get((node.domain, node.kind))
    return twin is not None and (twin.channels_last or bool(node.attrs.get("channels_last")))


def channels_first(node: Node) -> Node:
    """The node as if its first operand and its results had their channels in dimension 1."""
    if not has_channels_last(node):
        return node
    outputs = tuple(value and moved_channels(value) for value in node.outputs)
    return replace(
        node, inputs=(moved_channels(node.operand(0)), *node.inputs[1:]), outputs=outputs
    )


def moved_channels(value: Value) -> Value:
    """A value whose last dimension becomes dimension 1."""
    return replace(value, shape=(value.shape[0], value.shape[-1], *value.shape[1:-1]))


def like(index: int, dtype: int | str | None = None) -> ShapeRule:
    """Make a rule for the shape of operand ``index``, with its type, another operand's or a named
    one; only of the first output."""

    def shapes(node: Node) -> list[Result]:
        source = index if dtype is None else dtype
        return [
            (source if isinstance(source, str) else node.operand(source).dtype, node.shape(index))
        ]

    return shapes


def _skip_normalised(node: Node) -> list[Result]:
    """Result, two statistics that inference leaves empty, and the residual sum."""
    first = node.operand(0)
    statistics = (first.dtype, (*first.shape[:-1], 1))
    return [(first.dtype, first.shape), statistics, statistics, (first.dtype, first.shape)]


def broadcast(*indices: int, dtype: str = "") -> ShapeRule:
    """Make a rule for operands ``indices`` that broadcast against each other, with the last one's
    type unless another is named."""

    def shapes(node: Node) -> list[Result]:
        shape = broadcast_shapes(*(node.shape(index) for index in indices))
        return [(dtype or node.operand(indices[-1]).dtype, shape)]

    return shapes


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
    lead = broadcast_shapes(left[:-2], right[:-2])
    return lead + ((left[-2],) if len(a) > 1 else ()) + ((right[-1],) if len(b) > 1 else ())


def _fused_matmul(node: Node) -> list[Result]:
    return [(node.operand(0).dtype, product_shape(*matrix_shapes(node)))]


def projected_attention(dtype: int, past: int) -> ShapeRule:
    """Make a rule for attention with one matrix of projections: the result, and all keys and values
    if earlier steps are in ``past``."""

    def shapes(node: Node) -> list[Result]:
        batch, steps, _ = node.shape(0)
        sizes, heads, earlier = (
            node.attrs.get("qkv_hidden_sizes"),
            node.attrs["num_heads"],
            node.optional(past),
        )
        width = sizes[2] if sizes else node.shape(1)[1] // 3
        keys = steps + (earlier.shape[3] if earlier else 0)
        kind = node.operand(dtype).dtype
        return [(kind, (batch, steps, width)), (kind, (2, batch, heads, keys, width // heads))]

    return shapes


def _multi_head_attention(past: int) -> ShapeRule:
    """Result, keys and values of all steps; earlier keys are operand ``past``."""

    def shapes(node: Node) -> list[Result]:
        query, key, value, heads = (
            node.shape(0),
            node.optional(1),
            node.optional(2),
            node.attrs["num_heads"],
        )
        if len(query) == 5:
            width = query[2] * query[4]
        elif value is None:
            width = query[2]
        else:
            width = value.shape[-1] if len(value.shape) == 3 else value.shape[1] * value.shape[3]
        earlier = node.optional(past)
        keys = query[1] if key is None else key.shape[2] if len(key.shape) == 4 else key.shape[1]
        keys += earlier.shape[2] if earlier else 0
        inner = query[4] if len(query) == 5 else query[2] // heads
        dtype, lead = node.operand(0).dtype, (query[0], heads, keys)
        return [
            (dtype, (*query[:2], width)),
            (dtype, (*lead, inner)),
            (dtype, (*lead, width // heads)),
        ]

    return shapes


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
    return [
        (table.dtype, (batch, steps, table.shape[-1])),
        ("int32", (batch,)),
        (table.dtype, (batch, steps, table.shape[-1])),
    ]


def _two_like_first(node: Node) -> list[Result]:
    """Result, and a sum of operands of the same shape."""
    return [(node.operand(0).dtype, node.shape(0))] * 2


def _rotated(node: Node) -> list[Result]:
    """Query and key, each turned."""
    return [(node.operand(index).dtype, node.shape(index)) for index in (1, 3)]


def _masked(mask: str) -> ShapeRule:
    """Result and a mask, one element each, or one bit of 32-bit words."""

    def shapes(node: Node) -> list[Result]:
        count = math.prod(node.shape(0))
        return [
            (node.operand(0).dtype, node.shape(0)),
            (mask, node.shape(0) if mask == "bool" else (-(-count // 32),)),
        ]

    return shapes


def _halved(node: Node) -> list[Result]:
    """Half of the last dimension gates the other."""
    return [(node.operand(0).dtype, (*node.shape(0)[:-1], node.shape(0)[-1] // 2))]


def _table_rows(node: Node) -> list[Result]:
    return [(node.operand(0).dtype, (*node.shape(1), *node.shape(0)[1:]))]


def _packed_rows(node: Node) -> list[Result]:
    """Rows of a quantised table, several elements in a byte of an unsigned one."""
    table, bits = node.operand(0), node.attrs.get("bits", 4)
    axis = node.attrs.get("gather_axis", 0) % len(table.shape)
    packed = 8 // bits if table.dtype == "uint8" else 1
    shape = (*table.shape[:axis], *node.shape(1), *table.shape[axis + 1 :])
    return [(node.operand(2).dtype, (*shape[:-1], shape[-1] * packed))]


def _fixed_columns(*attributes: str) -> ShapeRule:
    """Results whose last dimensions attributes say; a sum of operands may follow."""

    def shapes(node: Node) -> list[Result]:
        first = node.operand(0)
        results = [
            (first.dtype, (*first.shape[:-1], node.attrs[attribute])) for attribute in attributes
        ]
        return [*results, (first.dtype, first.shape)]

    return shapes


def _columns_of(index: int, axis: int) -> ShapeRule:
    """A matrix product whose weight, operand ``index``, has the result's columns in dimension
    ``axis``."""
    return lambda node: [(node.operand(0).dtype, (*node.shape(0)[:-1], node.shape(index)[axis]))]


def _sizes_of_operand(node: Node) -> list[Result]:
    """A packed weight whose logical shape is an operand."""
    sizes = node.operand(2).integers()
    if sizes is None:
        raise ModelError("the shape of its weight is not a constant: fold constants before loading")
    return [(node.operand(0).dtype, (*node.shape(0)[:-1], sizes[1]))]


def _low_precision_gemm(node: Node) -> list[Result]:
    rows = node.shape(0)[1 if node.attrs.get("transA") else 0]
    columns = node.shape(1)[0 if node.attrs.get("transB") else 1]
    return [
        (dtype_name(node.attrs.get("dtype", onnx.TensorProto.FLOAT), node.name), (rows, columns))
    ]


def _expanded_dimension(node: Node) -> list[Result]:
    axes = node.operand(1).integers()
    if axes is None:
        raise ModelError("its axis is not a constant: fold constants before loading")
    rank = len(node.shape(0)) + 1
    axis = axes[0] % rank
    return [(node.operand(0).dtype, (*node.shape(0)[:axis], 1, *node.shape(0)[axis:]))]


def _windows(node: Node) -> list[Result]:
    """Sliding windows along one dimension; their elements become the last one."""
    shape, size, step = list(node.shape(0)), node.attrs["size"], node.attrs.get("step", 1)
    axis = node.attrs.get("dim", -1) % len(shape)
    shape[axis] = (shape[axis] - size) // step + 1
    return [(node.operand(0).dtype, (*shape, size))]


def _spectrum(inverse: bool) -> ShapeRule:
    """Real transform of the last dimension; complex numbers are a last dimension of 2."""

    def shapes(node: Node) -> list[Result]:
        shape, dtype = node.shape(0), node.operand(0).dtype
        if inverse:
            return [
                (
                    dtype,
                    (
                        *shape[:-2],
                        2 * (shape[-2] - 1) if node.attrs.get("onesided", 1) else shape[-2],
                    ),
                )
            ]
        return [
            (
                dtype,
                (
                    *shape[:-1],
                    shape[-1] // 2 + 1 if node.attrs.get("onesided", 1) else shape[-1],
                    2,
                ),
            )
        ]

    return shapes


def _linear_attention(node: Node) -> list[Result]:
    """Result, and the state that remains."""
    (batch, steps, _), keys, values = node.shape(0), node.shape(1)[2], node.shape(2)[2]
    heads, states = node.attrs["q_num_heads"], node.attrs["kv_num_heads"]
    state = (batch, states, keys // states, values // states)
    window = node.attrs.get("state_window", 0)
    past = node.optional(3)
    dtype = node.operand(0).dtype
    result = (batch, steps, max(heads, states) * (values // states))
    return [(dtype, result), (past.dtype if past else dtype, (window, *state) if window else state)]


def _causal_convolution(node: Node) -> list[Result]:
    """Result like the operand, and the steps that the next call begins with."""
    shape, taps = node.shape(0), node.shape(1)[-1]
    last = bool(node.attrs.get("channels_last"))
    if len(shape) != 3 or node.attrs.get("state_window"):
        return [(node.operand(0).dtype, shape)]
    kept = (taps - 1) * node.attrs.get("dilation", 1)
    state = (shape[0], kept, shape[2]) if last else (shape[0], shape[1], kept)
    return [(node.operand(0).dtype, shape), (node.operand(0).dtype, state)]


CONTRIB_SHAPES: dict[tuple[str, str], ShapeRule] = {}
"""Rules from operands to the types and shapes of the first outputs, by domain and kind; each family
adds its own."""


def set_shapes(rule: ShapeRule, *kinds: str, domain: str = MICROSOFT) -> None:
    """Register the rule of the operators ``kinds``."""
    CONTRIB_SHAPES.update({(domain, kind): rule for kind in kinds})


set_shapes(
    like(0),
    "FastGelu",
    "BiasGelu",
    "QuickGelu",
    "RotaryEmbedding",
    "MRotaryEmbedding",
    "GroupNorm",
    "BiasSoftmax",
    "Inverse",
    "SampleOp",
)
set_shapes(
    like(0),
    "ScaledSiLU",
    "GatedAdd",
    "GatedRMSNorm",
    "BranchwiseRMSNorm",
    "MoE",
    "QMoE",
    "LongformerAttention",
    "DecoderAttention",
)
set_shapes(
    lambda node: [("uint32" if node.attrs.get("positive", 1) else "int32", node.shape(0))],
    "MurmurHash3",
)
set_shapes(like(1), "NGramRepeatBlock")
set_shapes(lambda _: [("bool", ())], "IsAllFinite")
set_shapes(_two_like_first, "SkipGroupNorm")
set_shapes(_skip_normalised, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
set_shapes(_masked("bool"), "BiasDropout")
set_shapes(_masked("uint32"), "BitmaskDropout", "BitmaskBiasDropout")
set_shapes(_halved, "BiasSplitGelu")
set_shapes(_rotated, "GemmaRotaryEmbedding")
set_shapes(broadcast(0, 1), "BiasAdd", "ComplexMul", "ComplexMulConj")
set_shapes(
    _fused_matmul,
    "FusedMatMul",
    "FusedMatMulActivation",
    "TransposeMatMul",
    "SparseToDenseMatMul",
    "GemmFastGelu",
)
set_shapes(_low_precision_gemm, "GemmFloat8")
set_shapes(_fixed_columns("N"), "MatMulNBits", "MatMulBnb4", "MatMulNBitsMlp")
set_shapes(_fixed_columns("Nq", "Nkv", "Nkv"), "MatMulNBitsQkv")
set_shapes(_columns_of(1, 0), "MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight")
set_shapes(_sizes_of_operand, "MatMulFpQ4")
set_shapes(lambda node: [(node.operand(0).dtype, (node.shape(0)[0], node.shape(1)[0]))], "CDist")
set_shapes(projected_attention(0, 4), "Attention", "DecoderMaskedSelfAttention")
set_shapes(_multi_head_attention(6), "MultiHeadAttention")
set_shapes(_multi_head_attention(5), "DecoderMaskedMultiHeadAttention")
set_shapes(_grouped_attention, "GroupQueryAttention")
set_shapes(_linear_attention, "LinearAttention")
set_shapes(_causal_convolution, "CausalConvWithState")
set_shapes(_embedding_sum, "EmbedLayerNormalization")
set_shapes(_table_rows, "TorchEmbedding")
set_shapes(_packed_rows, "GatherBlockQuantized")
set_shapes(_expanded_dimension, "ExpandDims")
set_shapes(_windows, "UnfoldTensor")
set_shapes(_spectrum(inverse=False), "Rfft")
set_shapes(_spectrum(inverse=True), "Irfft")


def _into_blocks(node: Node) -> list[Result]:
    """Whole blocks of channels."""
    shape = node.shape(0)
    channels, spatial = (
        (shape[-1], shape[1:-1]) if node.attrs.get("channels_last") else (shape[1], shape[2:])
    )
    return [
        (node.operand(0).dtype, (shape[0], -(-channels // CHANNEL_BLOCK) * CHANNEL_BLOCK, *spatial))
    ]


def _out_of_blocks(node: Node) -> list[Result]:
    """An attribute says how many channels are real."""
    batch, _, *spatial = node.shape(0)
    channels = node.attrs["channels"]
    shape = (
        (batch, *spatial, channels)
        if node.attrs.get("channels_last")
        else (batch, channels, *spatial)
    )
    return [(node.operand(0).dtype, shape)]


def _enlarged(node: Node) -> list[Result]:
    scales = node.attrs["scales"]
    return [
        (
            node.operand(0).dtype,
            tuple(size * scale for size, scale in zip(node.shape(0), scales, strict=True)),
        )
    ]


set_shapes(_into_blocks, "ReorderInput", domain=NCHWC)
set_shapes(_out_of_blocks, "ReorderOutput", domain=NCHWC)
set_shapes(_enlarged, "Upsample", domain=NCHWC)
