"""How operators divide that take some dimensions together: normalisations, reductions, running
sums."""

from __future__ import annotations

from loadmaster.workloads.frontends.onnx.division.table import (
    WHOLE,
    Division,
    Windows,
    along,
    division_rule,
)
from loadmaster.workloads.frontends.onnx.types import Node
from loadmaster.workloads.window import ALL, Window, identity


@division_rule("BatchNormalization")
def _batch_normalisation(node: Node) -> Division:
    shape = node.result.shape
    operands: dict[int, Windows] = {0: identity(len(shape))} | {
        i: (Window(1),) for i in range(1, len(node.inputs))
    }
    return Division(tuple(range(len(shape))), operands)


@division_rule("LRN")
def _local_response(node: Node) -> Division:
    rank, size = len(node.result.shape), node.attrs["size"]
    across = Window(1, 1, 1, -((size - 1) // 2), size // 2)
    return Division(
        tuple(range(rank)), {0: (Window(0), across, *(Window(axis) for axis in range(2, rank)))}
    )


@division_rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: Node) -> Division:
    """Along one axis from opset 13 on; before, over all dimensions from the axis on together."""
    rank = len(node.result.shape)
    modern = node.opset == 0 or node.opset >= 13
    axis = node.attrs.get("axis", -1 if modern else 1) % rank
    return along(rank, {axis} if modern else set(range(axis, rank)))


@division_rule("CumSum", "CumProd")
def _running_sum(node: Node) -> Division:
    axis, rank = node.integers("axis", 1), len(node.result.shape)
    return along(rank, {axis[0] % rank}) if axis else WHOLE


@division_rule("LpNormalization")
def _length_normalisation(node: Node) -> Division:
    rank = len(node.result.shape)
    return along(rank, {node.attrs.get("axis", -1) % rank})


@division_rule("MeanVarianceNormalization")
def _moment_normalisation(node: Node) -> Division:
    rank = len(node.result.shape)
    axes = node.integers("axes") or [axis for axis in (0, 2, 3) if axis < rank]
    return along(rank, {axis % rank for axis in axes})


@division_rule("GroupNormalization")
def _group_normalisation(node: Node) -> Division:
    """A group of channels is normalised together; scale and bias have a number for each channel, or
    before opset 21 for each group."""
    shape, groups = node.result.shape, node.attrs["num_groups"]
    if shape[1] % groups:
        return WHOLE
    each = shape[1] // groups
    found = along(len(shape), set(range(2, len(shape))))
    channels = Window(1, 1, each, unit=each)
    found.operands[0] = (Window(0), channels, *found.operands[0][2:])
    found.operands.update(
        {i: (Window(1) if node.shape(i)[0] == shape[1] else Window(1, 1, each),) for i in (1, 2)}
    )
    return Division(found.axes, found.operands, steps={1: each})


@division_rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _layer_normalisation(node: Node) -> Division:
    rank = len(node.result.shape)
    return along(rank, set(range(node.attrs.get("axis", -1) % rank, rank)))


@division_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip_normalisation(node: Node) -> Division:
    rank = len(node.result.shape)
    found = along(rank, {rank - 1})
    if node.shape(1) == node.result.shape:
        found.operands[1] = found.operands[0]
    return found


@division_rule(
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
    "ReduceSumSquare",
)
def _reduction(node: Node) -> Division:
    rank = len(node.shape(0))
    given = node.integers("axes", 1)
    if given is None and node.optional(1) is not None:
        return WHOLE
    axes = {axis % rank for axis in given} if given else set(range(rank))
    kept = [axis for axis in range(rank) if axis not in axes]
    keeps = bool(node.attrs.get("keepdims", 1))
    position = {axis: axis if keeps else place for place, axis in enumerate(kept)}
    windows = tuple(ALL if axis in axes else Window(position[axis]) for axis in range(rank))
    return Division(tuple(position[axis] for axis in kept), {0: windows})


@division_rule("ArgMax", "ArgMin")
def _largest(node: Node) -> Division:
    rank = len(node.shape(0))
    axis = node.attrs.get("axis", 0) % rank
    keeps = bool(node.attrs.get("keepdims", 1))
    windows = tuple(ALL if d == axis else Window(d - (d > axis and not keeps)) for d in range(rank))
    return Division(tuple(window.axis for window in windows if window.axis >= 0), {0: windows})
