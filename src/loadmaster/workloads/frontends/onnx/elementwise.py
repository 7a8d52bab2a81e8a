"""Operators that make every element of their result from the matching ones of their operands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from loadmaster.workloads.frontends.onnx.rules import (
    REPLANNED,
    Division,
    Node,
    Value,
    Windows,
    Work,
    aligned,
    rule,
    variant,
)
from loadmaster.workloads.graph import OpClass
from loadmaster.workloads.window import Window, identity


def elementwise(node: Node, data: int = 0) -> Work:
    """Count one operation for each element of the largest result; operand ``data`` decides the
    width."""
    return Work(
        OpClass.ELEMENTWISE, elements=max(value.count for value in node.outputs if value), data=data
    )


def by_element(node: Node) -> Division:
    """Every element of the result needs the matching one of each operand; what does not broadcast
    is needed as a whole."""
    shape = node.result.shape
    return Division(
        tuple(range(len(shape))),
        {i: aligned(value.shape, shape) for i, value in enumerate(node.inputs) if value},
    )


def _counted(steps: int, node: Node) -> Work:
    return Work(OpClass.ELEMENTWISE, elements=steps * node.result.count)


def only_operand(node: Node, source: Value) -> bool:
    """Whether the other operands hold no elements."""
    return (
        all(value is source or value.count == 0 for value in node.present)
        and node.inputs.count(source) == 1
    )


def always(_: Node, __: Value) -> bool:
    """As many elements are the same elements."""
    return True


def _same_storage(node: Node, source: Value) -> bool:
    """A cast between types that are planned alike; rounding to a quantised type is work."""
    result = node.result
    alike = source.dtype == result.dtype or (
        source.dtype in REPLANNED and result.dtype in REPLANNED
    )
    return alike and source.stored == result.stored


def _inference(node: Node, _: Value) -> bool:
    """Dropout that is not training: from opset 12 on an operand says so, in opset 6 and before an
    attribute did."""
    training = node.optional(2)
    return training is None or (training.data is not None and not training.data.any())


def _scaled(node: Node) -> Division:
    """Scales and zero points: one, one for each element of an axis, or one for each block along
    it."""
    shape = node.result.shape
    axis = node.attrs.get("axis", 1) % len(shape)
    block = node.attrs.get("block_size", 0)
    operands: dict[int, Windows] = {0: identity(len(shape))}
    for index in range(1, len(node.inputs)):
        scales = node.shape(index) if node.optional(index) else ()
        if len(scales) == 1 and scales[0] == shape[axis]:
            operands[index] = (Window(axis),)
        elif len(scales) == len(shape) and block:
            operands[index] = tuple(
                Window(d, 1, block) if d == axis else Window(d) for d in range(len(shape))
            )
    return Division(tuple(range(len(shape))), operands)


def _per_channel(node: Node) -> Division:
    rank = len(node.result.shape)
    channels = {i: (Window(1),) for i in range(1, len(node.inputs))}
    return Division(tuple(range(rank)), {0: identity(rank)} | channels)


def _update(node: Node) -> Work:
    """Weights and their state from gradients: decay, square, average, root, scale and subtract,
    about two steps for each operand."""
    tensors = [value.count for value in node.inputs[2:] if value]
    return Work(OpClass.ELEMENTWISE, elements=2 * sum(tensors), data=2)


rule(
    """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh Bernoulli BitCast BitShift BitwiseAnd BitwiseNot
    BitwiseOr BitwiseXor Ceil Celu Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual
    HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Mish Mod Mul Neg Not Or PRelu
    Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Swish Tan
    Tanh ThresholdedRelu Xor
    """,
    elementwise,
    by_element,
)
rule("Identity", elementwise, by_element, view=always)
rule("Max Mean Min Sum", elementwise, by_element, view=only_operand)
rule("Cast", elementwise, by_element, view=_same_storage)
rule("Dropout", elementwise, by_element, view=_inference)
rule("Clip", elementwise, by_element, planning=(1, 2))
# The width is that of the values, not of the condition.
rule("Where", partial(elementwise, data=1), by_element)
rule("QuantizeLinear", elementwise, _scaled)
rule("DequantizeLinear", elementwise, _scaled, view=always)
rule("BatchNormalization", elementwise, _per_channel)
# An element needs others than the matching one.
rule("SwiGLU", elementwise)
# Of an operand that gives its type or its shape alone nothing is read.
rule(
    "CastLike",
    lambda node: replace(elementwise(node), touched={1: 0}),
    view=_same_storage,
    planning=(1,),
)
rule(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike",
    lambda node: replace(_counted(1, node), touched={0: 0}),
)
# Angle, cosine, factor and sum for each of a window's cosines.
rule("HannWindow HammingWindow", partial(_counted, 4), by_element, planning=(0,))
rule("BlackmanWindow", partial(_counted, 8), by_element, planning=(0,))
# Two slopes, the smaller of them, and its positive part.
rule("MelWeightMatrix", partial(_counted, 4), planning=(0, 1, 2, 3, 4))
rule("Momentum Adagrad Adam", _update, domain="ai.onnx.preview.training")

variant("BiasGelu FastGelu QuickGelu QLinearLeakyRelu QLinearSigmoid", like="Sigmoid")
variant("QLinearAdd QLinearMul", like="Add", operands=(0, 3))
variant("QLinearWhere", like="Where", operands=(0, 1, 4))
for _domain in ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general"):
    # Rounding to few bits whose results stay floating-point numbers, as QONNX writes it.
    rule(
        "Quant IntQuant BipolarQuant FloatQuant Trunc",
        elementwise,
        like="Identity",
        domain=_domain,
    )
