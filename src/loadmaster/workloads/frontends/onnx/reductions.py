"""Operators that take some dimensions together: softmax, normalisations, reductions, running
sums, Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Iterable

from loadmaster.workloads.frontends.onnx.elementwise import elementwise, part_of
from loadmaster.workloads.frontends.onnx.rules import (
    NORMALISATION_STEPS,
    SOFTMAX_STEPS,
    WHOLE,
    Division,
    Node,
    Result,
    Work,
    WorkRule,
    along,
    divided,
    fourier_steps,
    reduction,
    rule,
    runtime_rule,
    variant,
    with_first_type,
)
from loadmaster.workloads.window import ALL, Window, identity


def _per_element(steps: int) -> WorkRule:
    """Return a rule that counts ``steps`` operations for each element of the first operand."""
    return lambda node: reduction(steps * node.operand(0).count)


_reduction = _per_element(1)
_softmax = _per_element(SOFTMAX_STEPS)
_normalisation = _per_element(NORMALISATION_STEPS)


def _by_axes(node: Node, given: Iterable[int]) -> Division:
    """Return how a reduction over the given axes divides; without axes it is over all."""
    rank = len(node.shape(0))
    axes = {axis % rank for axis in given} or set(range(rank))
    kept = [axis for axis in range(rank) if axis not in axes]
    places = kept if node.attrs.get("keepdims", 1) else range(len(kept))
    windows = dict.fromkeys(axes, ALL) | dict(zip(kept, map(Window, places), strict=True))
    return divided({0: identity(rank, windows)})


def _over_axes(node: Node) -> Division:
    """Return how a reduction over axes divides; it does not if the axes are unknown."""
    axes = node.integers("axes", 1)
    return WHOLE if axes is None and node.optional(1) is not None else _by_axes(node, axes or ())


def _per_channel(node: Node, together: Iterable[int]) -> Division:
    """Return how an operator over some dimensions divides, whose other operands have one number per
    channel."""
    found, channels = along(node, together), node.result.shape[1:2]
    for index, value in enumerate(node.inputs):
        if index and value and value.shape == channels:
            found.operands[index] = (Window(1),)
    return found


def _over_planes(node: Node) -> Division:
    """Return how an operator over rows and columns divides: by images and channels."""
    return _per_channel(node, range(2, node.rank))


def _trains(node: Node) -> bool:
    """Whether a batch normalisation computes its statistics; before opset 14, where it has several
    results."""
    return len(node.outputs) > 1 or bool(node.attrs.get("training_mode"))


def _by_batch(node: Node) -> Division:
    """Return how a batch normalisation divides: by channels alone if it computes statistics."""
    return _per_channel(node, {*range(node.rank)} - {1} if _trains(node) else ())


def _softmax_axes(node: Node) -> Division:
    """Return how a softmax divides: not along its axis; before opset 13, not from its axis on."""
    rank = node.rank
    modern = node.opset >= 13
    axis = node.attrs.get("axis", -1 if modern else 1) % rank
    return along(node, [axis] if modern else range(axis, rank))


def _by_group(node: Node) -> Division:
    """Return how a group normalisation divides: groups of channels stay whole. Scale and bias have
    one number per channel, before opset 21 one per group."""
    shape, groups = node.result.shape, node.attrs["num_groups"]
    if shape[1] % groups:
        return WHOLE
    each = shape[1] // groups
    rest = (ALL for _ in shape[2:])
    windows = {groups: Window(1, 1, each), shape[1]: Window(1)}
    scales = {i: (windows.get(node.shape(i)[0], ALL),) for i in (1, 2)}
    return divided({0: (Window(0), Window(1, 1, each, unit=each), *rest)} | scales, steps={1: each})


def _by_layer(node: Node) -> Division:
    """Return how a normalisation over the last dimensions divides."""
    rank = node.rank
    return along(node, range(node.attrs.get("axis", -1) % rank, rank))


def _with_sum(node: Node) -> Division:
    """Return how a normalisation of a sum divides, which reads its second operand like the
    first."""
    found = along(node, [-1])
    if node.shape(1) == node.result.shape:
        found.operands[1] = found.operands[0]
    return found


def _skip_shapes(node: Node) -> list[Result]:
    """Return the shapes of the result, of two statistics that inference leaves empty, and of the
    residual sum."""
    shape = node.shape(0)
    statistics = (*shape[:-1], 1)
    return with_first_type(node, shape, statistics, statistics, shape)


def _local_response(node: Node) -> Work:
    """Return the work of local response normalisation: a sum of squares over ``size`` channels for
    each element."""
    return reduction(node.operand(0).count * (node.attrs["size"] + NORMALISATION_STEPS))


def _near_channels(node: Node) -> Division:
    """Return how local response normalisation divides: a channel reads the ``size`` channels around
    it."""
    size = node.attrs["size"]
    return divided({0: identity(node.rank, {1: Window(1, 1, 1, -((size - 1) // 2), size // 2)})})


def _region_pool(node: Node) -> Work:
    """Return the work of RoiAlign: four neighbours for each sample of each output."""
    samples = max(1, node.attrs.get("sampling_ratio", 1)) ** 2
    return reduction(4 * samples * node.result.count)


def _embedding_work(node: Node) -> Work:
    """Return the work of summing and normalising rows of three tables (word, position, segment)."""
    rows: dict[int | str, int] = {
        index: part_of(node.operand(index), node.result.count)
        for index in (2, 3, 4)
        if node.optional(index)
    }
    return reduction(NORMALISATION_STEPS * node.result.count, rows, data=2)


def _embedding_shapes(node: Node) -> list[Result]:
    """Return the shapes of the normalised sum of embeddings, of the ends of sentences, and of the
    sum before normalisation, in the type of the tables or of the scales of quantised tables."""
    quantised = node.kind.startswith("Q")
    total = (node.operand(8 if quantised else 2).dtype, (*node.shape(0), node.shape(2)[-1]))
    ends = ("int32", node.shape(0)[:1])
    return [total, ends] if quantised else [total, ends, total]


AXIS_IS_OPERAND = 20
"""The opset from which on a transform's axis is an operand, with another default."""


def _transform(node: Node) -> Work:
    """Return the work of a Fourier transform along one dimension. The last dimension is 2
    for complex numbers, 1 for real ones."""
    source, result = node.shape(0), node.result.shape
    given = node.integers("axis", 2)
    axis = (given or [1 if node.opset < AXIS_IS_OPERAND else -2])[0] % len(source)
    length = (node.integers("", 1) or [max(source[axis], result[axis])])[0]
    transforms = math.prod(size for index, size in enumerate(source[:-1]) if index != axis)
    return reduction(transforms * fourier_steps(length, real=1 in (source[-1], result[-1])))


def _short_time_transform(node: Node) -> Work:
    """Return the work of a Fourier transform of each frame, after its product with the window."""
    batch, frames, bins = node.result.shape[:3]
    real = node.shape(0)[-1] == 1 or len(node.shape(0)) == 2
    window = node.optional(2)
    length = window.shape[0] if window else (node.integers("", 3) or [bins])[0]
    product = 0 if window is None else length * (1 if real else 2)
    return reduction(batch * frames * (fourier_steps(length, real) + product))


def _by_pairs(node: Node) -> Work:
    """Return the work of rotary embedding. It counts as a reduction, because an element needs its
    partner and cannot be fused into the producer."""
    return reduction(elementwise(node).elements)


def _by_rows(node: Node) -> Division:
    """Return how rotary embedding divides: not along the last dimension, pairs of whose elements
    are rotated together."""
    return along(node, [-1])


rule("Softmax LogSoftmax Hardmax", _softmax, _softmax_axes)
rule("SoftmaxCrossEntropyLoss", _softmax)
rule("LayerNormalization RMSNormalization", _normalisation, _by_layer)
rule("InstanceNormalization", _normalisation, _over_planes)
rule(
    "BatchNormalization",
    lambda node: (_normalisation if _trains(node) else elementwise)(node),
    _by_batch,
)
# Inference knows these by their bodies alone.
rule("GroupNormalization", _normalisation, _by_group, like="Identity")
rule("MeanVarianceNormalization", _normalisation, like="Identity")
rule("LpNormalization", _normalisation, lambda node: along(node, [node.attrs.get("axis", -1)]))
rule("LRN", _local_response, _near_channels)
rule(
    """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
    """,
    _reduction,
    _over_axes,
    planning=(1,),
)
rule("ArgMax ArgMin", _reduction, lambda node: _by_axes(node, [node.attrs.get("axis", 0)]))
rule("GlobalAveragePool GlobalMaxPool GlobalLpPool", _reduction, _over_planes)
rule("CumSum CumProd TopK", _reduction, planning=(1,))
rule(
    "Det DynamicQuantizeLinear NegativeLogLikelihoodLoss NonMaxSuppression Unique",
    _reduction,
)
rule("DFT", _transform, planning=(1, 2))
rule("STFT", _short_time_transform, planning=(1, 3))
rule("MaxRoiPool RoiAlign", _region_pool)
rule("Multinomial", _by_pairs)
rule("RotaryEmbedding", _by_pairs, _by_rows)

variant("SimplifiedLayerNormalization", like="RMSNormalization", domain="")
runtime_rule(
    "SkipLayerNormalization SkipSimplifiedLayerNormalization",
    _normalisation,
    _with_sum,
    shapes=_skip_shapes,
)
runtime_rule("RotaryEmbedding", _by_pairs, _by_rows, like="Identity")
runtime_rule("GroupNorm", _normalisation, like="Identity")
runtime_rule("QLinearSoftmax", _softmax, like="Identity")
runtime_rule(
    "EmbedLayerNormalization QEmbedLayerNormalization", _embedding_work, shapes=_embedding_shapes
)
variant("QLinearGlobalAveragePool", like="GlobalAveragePool")
