"""Operators that ONNX Runtime's quantiser writes in operator format: their shapes, and their
arithmetic on eight bits.

A quantised tensor comes with its scale and its zero point as further operands: scalars, or one
number for each channel.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.workloads.frontends.onnx.attention import projected
from loadmaster.workloads.frontends.onnx.contrib import (
    MICROSOFT,
    Result,
    ShapeRule,
    broadcast,
    like,
    product_shape,
    projected_attention,
    set_shapes,
)
from loadmaster.workloads.frontends.onnx.elementwise import (
    elementwise,
    normalisation,
    reduction,
    softmax,
    summed_embeddings,
)
from loadmaster.workloads.frontends.onnx.products import gemm, matmul, matrix_nest, product
from loadmaster.workloads.frontends.onnx.recurrent import cell
from loadmaster.workloads.frontends.onnx.rules import rule
from loadmaster.workloads.frontends.onnx.types import Node, Work, dtype_name
from loadmaster.workloads.graph import LoopNest, OpClass


def _concatenated(node: Node) -> list[Result]:
    """Operands come in threes (tensor, scale, zero point) after the result's scale and zero
    point."""
    parts = [node.shape(index) for index in range(2, len(node.inputs), 3)]
    axis = node.attrs["axis"] % len(parts[0])
    total = sum(part[axis] for part in parts)
    return [(node.operand(2).dtype, (*parts[0][:axis], total, *parts[0][axis + 1 :]))]


def _reduced(dtype: str = "") -> ShapeRule:
    """Axes are an attribute; without it all are reduced."""

    def shapes(node: Node) -> list[Result]:
        shape = node.shape(0)
        axes = {axis % len(shape) for axis in node.attrs.get("axes") or range(len(shape))}
        sizes = [1 if axis in axes else size for axis, size in enumerate(shape)]
        kept = (
            sizes
            if node.attrs.get("keepdims", 1)
            else [size for axis, size in enumerate(shape) if axis not in axes]
        )
        return [(dtype or node.operand(0).dtype, tuple(kept))]

    return shapes


def _general_product(node: Node) -> list[Result]:
    """A product of eight bits if the result has a zero point, else of the scales' type."""
    rows = node.shape(0)[1 if node.attrs.get("transA") else 0]
    columns = node.shape(3)[0 if node.attrs.get("transB") else 1]
    return [(node.operand(0 if node.optional(8) else 1).dtype, (rows, columns))]


def _product_of(weight: int, dtype: int | str) -> ShapeRule:
    """A matrix product of operand 0 and operand ``weight``, of the type of operand ``dtype`` or of
    the one that is named."""

    def shapes(node: Node) -> list[Result]:
        kind = dtype if isinstance(dtype, str) else node.operand(dtype).dtype
        return [(kind, product_shape(node.shape(0), node.shape(weight)))]

    return shapes


def _ordered_attention(node: Node) -> list[Result]:
    return [(node.operand(0).dtype, (*node.shape(0)[:2], node.shape(7)[1]))]


def _embeddings(node: Node) -> list[Result]:
    """The sum of embeddings in the scales' type, and where each sentence ends."""
    batch, steps = node.shape(0)
    return [(node.operand(8).dtype, (batch, steps, node.shape(2)[-1])), ("int32", (batch,))]


def _recurrent(node: Node) -> list[Result]:
    """Weights are (directions, width, gates * hidden): the other way round than in the standard
    operator."""
    steps, batch, _ = node.shape(0)
    directions, hidden, _ = node.shape(2)
    dtype, state = node.operand(0).dtype, (directions, batch, hidden)
    return [(dtype, (steps, *state)), (dtype, state), (dtype, state)]


def _dequantised(node: Node) -> list[Result]:
    return [(dtype_name(node.attrs.get("to", 1), node.name), node.shape(0))]


set_shapes(
    like(0),
    "QLinearSigmoid",
    "QLinearLeakyRelu",
    "QLinearSoftmax",
    "QOrderedGelu",
    "QOrderedLayerNormalization",
)
set_shapes(like(0), "QOrderedLongformerAttention")
set_shapes(broadcast(0, 3), "QLinearAdd", "QLinearMul")
set_shapes(broadcast(0, 2, dtype="int32"), "MulInteger")
set_shapes(broadcast(0, 4, 1), "QLinearWhere")
set_shapes(_concatenated, "QLinearConcat")
set_shapes(_reduced(), "QLinearReduceMean")
set_shapes(_reduced("int32"), "ReduceSumInteger")
set_shapes(_general_product, "QGemm")
set_shapes(_product_of(1, 2), "MatMulIntegerToFloat")
set_shapes(_product_of(1, 0), "DynamicQuantizeMatMul")
set_shapes(_product_of(1, "int32"), "MatMulInteger16")
set_shapes(_product_of(2, 0), "QOrderedMatMul")
set_shapes(projected_attention(2, 8), "QAttention")
set_shapes(_ordered_attention, "QOrderedAttention")
set_shapes(_embeddings, "QEmbedLayerNormalization")
set_shapes(_recurrent, "DynamicQuantizeLSTM")
set_shapes(like(0, "int8"), "QuantizeWithOrder")
set_shapes(_dequantised, "DequantizeWithOrder")

rule(
    "QLinearSigmoid",
    "QLinearLeakyRelu",
    "QLinearAdd",
    "QLinearMul",
    "MulInteger",
    "QOrderedGelu",
    domain=MICROSOFT,
)(elementwise)
rule("QuantizeWithOrder", "DequantizeWithOrder", domain=MICROSOFT)(elementwise)
rule("QLinearWhere", domain=MICROSOFT)(lambda node: elementwise(node, data=1))
rule("QLinearSoftmax", domain=MICROSOFT)(softmax)
rule("QOrderedLayerNormalization", domain=MICROSOFT)(normalisation)
rule("QLinearReduceMean", "ReduceSumInteger", domain=MICROSOFT)(reduction)
rule("QLinearConcat", domain=MICROSOFT)(lambda _: Work(OpClass.MOVEMENT, data=2))
rule("MatMulIntegerToFloat", "MatMulInteger16", domain=MICROSOFT)(lambda node: matmul(node, 0, 1))
rule("QGemm", domain=MICROSOFT)(lambda node: gemm(node, 0, 3))
rule("QEmbedLayerNormalization", domain=MICROSOFT)(summed_embeddings)
rule("QAttention", domain=MICROSOFT)(lambda node: projected(node, 1, past=8))


for _domain in ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general"):
    # Rounding to few bits whose results stay floating-point numbers, as QONNX writes it.
    _kinds = ("Quant", "IntQuant", "BipolarQuant", "FloatQuant", "Trunc")
    set_shapes(like(0), *_kinds, domain=_domain)
    rule(*_kinds, domain=_domain)(elementwise)


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_matmul(node: Node) -> Work:
    """The floating operand is quantised at run time, and the weight's width is that of the
    arithmetic."""
    return replace(matmul(node, 0, 1), elements=node.operand(0).count, data=1)


@rule("QOrderedMatMul", domain=MICROSOFT)
def _ordered_matmul(node: Node) -> Work:
    return product(
        matrix_nest(node.shape(0), node.shape(2), (node.label(0), node.label(2), node.result.name))
    )


@rule("QOrderedAttention", domain=MICROSOFT)
def _three_projections(node: Node) -> Work:
    """Queries, keys and values have a matrix each."""
    batch, steps, inner = node.shape(0)
    nests = [
        LoopNest(
            node.shape(at)[1], inner, batch * steps, input=node.label(0), weight=node.label(at)
        )
        for at in (5, 6, 7)
    ]
    return projected(
        node, 5, past=18, projections=nests, widths=[node.shape(at)[1] for at in (5, 6, 7)]
    )


@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def _quantised_cell(node: Node) -> Work:
    """The input is quantised at run time, and so is the state at every step."""
    directions, hidden, gates = node.shape(2)
    steps, batch, _ = node.shape(0)
    quantised = node.operand(0).count + directions * hidden * steps * batch
    return replace(cell(node, steps, batch, hidden, gates, quantised), data=1)
