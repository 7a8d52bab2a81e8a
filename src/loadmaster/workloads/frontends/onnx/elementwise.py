"""Operators without multiply-accumulate loops: elementwise arithmetic, reductions and data movement."""

from __future__ import annotations

import math

from loadmaster.workloads.frontends.onnx.contrib import MICROSOFT
from loadmaster.workloads.frontends.onnx.rules import rule
from loadmaster.workloads.frontends.onnx.types import Node, Value, Work, storage_bytes
from loadmaster.workloads.graph import OpClass

SOFTMAX_STEPS = 5
"""Operations per element of a softmax: maximum, subtract, exponential, sum, divide."""
NORMALISATION_STEPS = 5
"""Operations per element of a normalisation: mean, subtract, square, scale, shift."""


def _elementwise(node: Node, data: int = 0) -> Work:
    return Work(OpClass.ELEMENTWISE, elements=max(value.count for value in node.outputs if value), data=data)


rule(
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "BitCast", "BitShift"),
    *("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Cos", "Cosh", "DequantizeLinear", "Div"),
    *("Dropout", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity"),
    *("IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu"),
    *("Pow", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign"),
    *("Sqrt", "Sub", "Sum", "SwiGLU", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Xor", "RotaryEmbedding"),
)(_elementwise)
rule("Clip", planning=(1, 2))(_elementwise)
rule("FastGelu", "BiasGelu", "QuickGelu", "BiasAdd", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)(
    _elementwise
)


@rule("Where")
def _where(node: Node) -> Work:
    """The width is that of the values, not of the condition."""
    return _elementwise(node, data=1)


@rule("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def _random(node: Node) -> Work:
    """Only the shape of the operand matters."""
    return Work(OpClass.ELEMENTWISE, elements=node.result.count, touched={0: 0})


rule("Bernoulli", "Multinomial")(_elementwise)


@rule(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
    *("ReduceSumSquare", "TopK", "CumSum", "CumProd"),
    planning=(1,),
)
@rule("ArgMax", "ArgMin", "DynamicQuantizeLinear", "NegativeLogLikelihoodLoss", "Det", "Unique", "NonMaxSuppression")
def _reduction(node: Node) -> Work:
    return Work(OpClass.REDUCTION, elements=node.operand(0).count)


@rule("Softmax", "LogSoftmax", "Hardmax", "SoftmaxCrossEntropyLoss")
@rule("QLinearSoftmax", domain=MICROSOFT)
def _softmax(node: Node) -> Work:
    return Work(OpClass.REDUCTION, elements=SOFTMAX_STEPS * node.operand(0).count)


@rule("LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization", "LpNormalization")
@rule("RMSNormalization", "SimplifiedLayerNormalization")
@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "GroupNorm", domain=MICROSOFT)
def _normalisation(node: Node) -> Work:
    return Work(OpClass.REDUCTION, elements=NORMALISATION_STEPS * node.operand(0).count)


@rule("LRN")
def _local_response(node: Node) -> Work:
    """A sum of squares over ``size`` channels at every element."""
    return Work(OpClass.REDUCTION, elements=node.operand(0).count * (node.attrs["size"] + NORMALISATION_STEPS))


@rule("AveragePool", "MaxPool", "LpPool")
def _pool(node: Node) -> Work:
    window = math.prod(node.integers("kernel_shape") or [1])
    return Work(OpClass.REDUCTION, elements=node.result.count * window)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
@rule("QLinearGlobalAveragePool", domain=MICROSOFT)
def _global_pool(node: Node) -> Work:
    return Work(OpClass.REDUCTION, elements=node.operand(0).count)


@rule("MaxRoiPool", "RoiAlign")
def _region_pool(node: Node) -> Work:
    """Four neighbours for each sample of each output."""
    samples = max(1, node.attrs.get("sampling_ratio", 1)) ** 2
    return Work(OpClass.REDUCTION, elements=4 * samples * node.result.count)


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def _embedding_sum(node: Node) -> Work:
    """Rows of three tables (word, position, segment), summed and normalised."""
    rows = {index: _part_of(node.operand(index), node.result.count) for index in (2, 3, 4) if node.optional(index)}
    return Work(OpClass.REDUCTION, elements=NORMALISATION_STEPS * node.result.count, touched=rows, data=2)


rule(
    *("Transpose", "Concat", "Scatter", "ScatterElements", "ScatterND", "TensorScatter", "DepthToSpace", "SpaceToDepth"),
    *("ReverseSequence", "NonZero", "Compress", "Trilu", "GridSample", "MaxUnpool", "Col2Im", "AffineGrid"),
)(lambda _: Work(OpClass.MOVEMENT))
rule("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "Upsample", "OneHot", "Range", planning=(1,))(
    lambda _: Work(OpClass.MOVEMENT)
)
rule("Pad", "Resize", "CenterCropPad", planning=(1, 2, 3))(lambda _: Work(OpClass.MOVEMENT))
rule("ConstantOfShape", "EyeLike", planning=(0,))(lambda _: Work(OpClass.MOVEMENT))
rule("QLinearConcat", domain=MICROSOFT)(lambda _: Work(OpClass.MOVEMENT, data=2))


def _part_of(value: Value, count: int) -> int:
    """Bytes of ``count`` elements of a tensor, at most all of it."""
    return min(value.bytes, storage_bytes(count, value.stored))


@rule("Gather", "GatherElements", "GatherND")
@rule("Slice", planning=(1, 2, 3, 4))
@rule("Split", planning=(1,))
def _selection(node: Node) -> Work:
    """Touches only what it takes."""
    taken = sum(value.count for value in node.outputs if value)
    return Work(OpClass.MOVEMENT, touched={0: _part_of(node.operand(0), taken)})
