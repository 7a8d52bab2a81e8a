"""Operators without multiply-accumulate loops: elementwise arithmetic, reductions and data
movement."""

from __future__ import annotations

import math
from dataclasses import replace

from loadmaster.workloads.frontends.onnx.contrib import MICROSOFT, NCHWC
from loadmaster.workloads.frontends.onnx.rules import rule
from loadmaster.workloads.frontends.onnx.types import Node, Value, Work, storage_bytes
from loadmaster.workloads.frontends.operation_counts import NORMALISATION_STEPS, SOFTMAX_STEPS
from loadmaster.workloads.graph import OpClass


def elementwise(node: Node, data: int = 0) -> Work:
    """Count one operation for each element of the largest result; operand ``data`` decides the
    width."""
    return Work(
        OpClass.ELEMENTWISE, elements=max(value.count for value in node.outputs if value), data=data
    )


rule(
    *(
        "Abs",
        "Acos",
        "Acosh",
        "Add",
        "And",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "BatchNormalization",
        "BitCast",
        "BitShift",
    ),
    *(
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Cast",
        "Ceil",
        "Celu",
        "Cos",
        "Cosh",
        "DequantizeLinear",
        "Div",
    ),
    *(
        "Dropout",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "Identity",
    ),
    *(
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Mean",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "PRelu",
    ),
    *(
        "Pow",
        "QuantizeLinear",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Shrink",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
    ),
    *("Sqrt", "Sub", "Sum", "SwiGLU", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Xor"),
)(elementwise)
rule("Clip", planning=(1, 2))(elementwise)
rule("CastLike", planning=(1,))(lambda node: replace(elementwise(node), touched={1: 0}))
rule(
    *(
        "FastGelu",
        "BiasGelu",
        "QuickGelu",
        "BiasAdd",
        "BiasSplitGelu",
        "BiasDropout",
        "BitmaskDropout",
        "BitmaskBiasDropout",
        "ScaledSiLU",
    ),
    *("GatedAdd", "MurmurHash3"),
    domain=MICROSOFT,
)(elementwise)


@rule("RotaryEmbedding")
@rule("ComplexMul", "ComplexMulConj", "MRotaryEmbedding", domain=MICROSOFT)
def _by_pairs(node: Node) -> Work:
    """As elementwise, but an element needs its partner too: it cannot run on each as it is made."""
    return replace(elementwise(node), op_class=OpClass.REDUCTION)


@rule("GemmaRotaryEmbedding", domain=MICROSOFT)
def _gemma_rotation(node: Node) -> Work:
    """Count as `RotaryEmbedding`, whose data are the second operand here."""
    return replace(elementwise(node, data=1), op_class=OpClass.REDUCTION)


rule("HannWindow", "HammingWindow", planning=(0,))(lambda node: _window(node, 1))
rule("BlackmanWindow", planning=(0,))(lambda node: _window(node, 2))


def _window(node: Node, cosines: int) -> Work:
    """Angle, cosine, factor and sum for each of a window's cosines."""
    return Work(OpClass.ELEMENTWISE, elements=4 * cosines * node.result.count)


@rule("MelWeightMatrix", planning=(0, 1, 2, 3, 4))
def _mel_weights(node: Node) -> Work:
    """Two slopes, the smaller of them, and its positive part, at every element."""
    return Work(OpClass.ELEMENTWISE, elements=4 * node.result.count)


@rule("Momentum", "Adagrad", "Adam", domain="ai.onnx.preview.training")
def _update(node: Node) -> Work:
    """Weights and their state from gradients: decay, square, average, root, scale and subtract,
    about two steps for each operand."""
    tensors = [value.count for value in node.inputs[2:] if value]
    return Work(OpClass.ELEMENTWISE, elements=2 * sum(tensors), data=2)


@rule("Where")
def _where(node: Node) -> Work:
    """Count as elementwise, with the width of the values, not of the condition."""
    return elementwise(node, data=1)


@rule("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def _random(node: Node) -> Work:
    """Count the result only, as the operand's elements are not read."""
    return Work(OpClass.ELEMENTWISE, elements=node.result.count, touched={0: 0})


rule("Bernoulli")(elementwise)
rule("Multinomial")(lambda node: replace(elementwise(node), op_class=OpClass.REDUCTION))


@rule(
    *(
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
    ),
    *("ReduceSumSquare", "TopK", "CumSum", "CumProd"),
    planning=(1,),
)
@rule(
    "ArgMax",
    "ArgMin",
    "DynamicQuantizeLinear",
    "NegativeLogLikelihoodLoss",
    "Det",
    "Unique",
    "NonMaxSuppression",
)
def reduction(node: Node) -> Work:
    """Count one operation for each element of the operand."""
    return Work(OpClass.REDUCTION, elements=node.operand(0).count)


@rule("Softmax", "LogSoftmax", "Hardmax", "SoftmaxCrossEntropyLoss")
@rule("BiasSoftmax", domain=MICROSOFT)
def softmax(node: Node) -> Work:
    """Maximum, subtract, exponential, sum and divide for each element."""
    return Work(OpClass.REDUCTION, elements=SOFTMAX_STEPS * node.operand(0).count)


@rule(
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "MeanVarianceNormalization",
    "LpNormalization",
)
@rule("RMSNormalization", "SimplifiedLayerNormalization")
@rule(
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "GroupNorm",
    "SkipGroupNorm",
    domain=MICROSOFT,
)
@rule("GatedRMSNorm", "BranchwiseRMSNorm", domain=MICROSOFT)
def normalisation(node: Node) -> Work:
    """Mean, subtract, square, scale and shift for each element."""
    return Work(OpClass.REDUCTION, elements=NORMALISATION_STEPS * node.operand(0).count)


@rule("Inverse", domain=MICROSOFT)
def _inverse(node: Node) -> Work:
    """Gauss-Jordan elimination: a multiplication and a subtraction for each row, at each
    element."""
    return Work(OpClass.REDUCTION, elements=2 * node.operand(0).count * node.shape(0)[-1])


@rule("LRN")
def _local_response(node: Node) -> Work:
    """A sum of squares over ``size`` channels at every element."""
    return Work(
        OpClass.REDUCTION,
        elements=node.operand(0).count * (node.attrs["size"] + NORMALISATION_STEPS),
    )


@rule("AveragePool", "MaxPool", "LpPool")
@rule("QLinearAveragePool", "NhwcMaxPool", "MaxpoolWithMask", domain=MICROSOFT)
@rule("AveragePool", "MaxPool", domain=NCHWC)
def _pool(node: Node) -> Work:
    window = math.prod(node.integers("kernel_shape") or [1])
    return Work(OpClass.REDUCTION, elements=node.result.count * window)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
@rule("QLinearGlobalAveragePool", "IsAllFinite", domain=MICROSOFT)
@rule("GlobalAveragePool", "GlobalMaxPool", domain=NCHWC)
def _global_pool(node: Node) -> Work:
    return Work(OpClass.REDUCTION, elements=node.operand(0).count)


@rule("MaxRoiPool", "RoiAlign")
def _region_pool(node: Node) -> Work:
    """Four neighbours for each sample of each output."""
    samples = max(1, node.attrs.get("sampling_ratio", 1)) ** 2
    return Work(OpClass.REDUCTION, elements=4 * samples * node.result.count)


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def summed_embeddings(node: Node) -> Work:
    """Rows of three tables (word, position, segment), summed and normalised."""
    rows = {
        index: _part_of(node.operand(index), node.result.count)
        for index in (2, 3, 4)
        if node.optional(index)
    }
    return Work(
        OpClass.REDUCTION, elements=NORMALISATION_STEPS * node.result.count, touched=rows, data=2
    )


rule(
    *(
        "Transpose",
        "Concat",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "TensorScatter",
        "DepthToSpace",
        "SpaceToDepth",
    ),
    *(
        "ReverseSequence",
        "NonZero",
        "Compress",
        "Trilu",
        "GridSample",
        "MaxUnpool",
        "Col2Im",
        "AffineGrid",
    ),
)(lambda _: Work(OpClass.MOVEMENT))
rule(
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "Tile",
    "Upsample",
    "OneHot",
    "Range",
    planning=(1,),
)(lambda _: Work(OpClass.MOVEMENT))
rule("Pad", "Resize", "CenterCropPad", planning=(1, 2, 3))(lambda _: Work(OpClass.MOVEMENT))
rule("ConstantOfShape", "EyeLike", planning=(0,))(lambda _: Work(OpClass.MOVEMENT))
rule("ReorderInput", "ReorderOutput", "Upsample", domain=NCHWC)(lambda _: Work(OpClass.MOVEMENT))
rule("UnfoldTensor", "NGramRepeatBlock", domain=MICROSOFT)(lambda _: Work(OpClass.MOVEMENT))
rule("ExpandDims", domain=MICROSOFT, planning=(1,))(lambda _: Work(OpClass.MOVEMENT))


def _part_of(value: Value, count: int) -> int:
    """Return the bytes of ``count`` elements of a tensor, at most of all."""
    return min(value.bytes, storage_bytes(count, value.stored))


@rule("Gather", "GatherElements", "GatherND")
@rule("Slice", planning=(1, 2, 3, 4))
@rule("Split", planning=(1,))
def _selection(node: Node) -> Work:
    """Count only the bytes that are selected."""
    taken = sum(value.count for value in node.outputs if value)
    return Work(OpClass.MOVEMENT, touched={0: _part_of(node.operand(0), taken)})


@rule("TorchEmbedding", domain=MICROSOFT)
def _rows(node: Node) -> Work:
    return Work(OpClass.MOVEMENT, touched={0: _part_of(node.operand(0), node.result.count)})


@rule("GatherBlockQuantized", domain=MICROSOFT)
def _quantised_rows(node: Node) -> Work:
    """Rows of a packed table and their scales, and a multiplication for each element."""
    taken = node.operand(1).count
    share = {
        index: -(-node.operand(index).bytes * taken // node.shape(0)[0])
        for index in (0, 2, 3)
        if node.optional(index)
    }
    touched = {index: min(node.operand(index).bytes, size) for index, size in share.items()}
    return Work(OpClass.ELEMENTWISE, elements=node.result.count, touched=touched)
