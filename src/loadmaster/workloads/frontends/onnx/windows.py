"""Which part of each operand of an ONNX operator a part of its result needs, and along which dimensions the work divides.

What is not listed here is not cut: it stays a job of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from loadmaster.workloads.frontends.onnx.types import Node, Shape
from loadmaster.workloads.graph import LoopNest, OpClass
from loadmaster.workloads.window import ALL, Window, identity

Windows = tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How an operator divides: ``axes`` are dimensions of the result that can be cut without repeating work, ``operands`` the windows of
    its operands by position (all of an operand is needed where there are none), ``loops`` the loop of each loop nest that every
    dimension of the result belongs to."""

    axes: tuple[int, ...] = ()
    operands: dict[int, Windows] = field(default_factory=dict)
    loops: tuple[str, ...] = ()


WHOLE = Division()
_Rule = Callable[[Node], Division]
_RULES: dict[str, _Rule] = {}


def _rule(*kinds: str) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def division(node: Node, op_class: OpClass) -> Division:
    """How a node divides; :data:`WHOLE` if that is not known, or if it has several results."""
    if node.domain not in ("", "ai.onnx", "com.microsoft") or sum(value is not None for value in node.outputs) != 1:
        return WHOLE
    if node.attrs.get("channels_last"):
        # The rules below take channels to come second.
        return WHOLE
    rule = _RULES.get(node.kind, _elementwise if op_class is OpClass.ELEMENTWISE else None)
    return rule(node) if rule and node.result.shape else WHOLE


def with_loops(nest: LoopNest, loops: tuple[str, ...]) -> LoopNest:
    """The nest, knowing which of its loops each dimension of the result is."""
    return replace(nest, loops=loops) if loops else nest


def aligned(operand: Shape, result: Shape) -> Windows:
    """Windows of an operand that is broadcast to the result by numpy's rules."""
    shift = len(result) - len(operand)
    return tuple(Window(axis + shift) if extent == result[axis + shift] else ALL for axis, extent in enumerate(operand))


def _broadcasts(operand: Shape, result: Shape) -> bool:
    shift = len(result) - len(operand)
    return shift >= 0 and all(extent in (1, result[axis + shift]) for axis, extent in enumerate(operand))


def _elementwise(node: Node) -> Division:
    shape = node.result.shape
    operands = {i: aligned(v.shape, shape) for i, v in enumerate(node.inputs) if v and _broadcasts(v.shape, shape)}
    return Division(tuple(range(len(shape))), operands)


@_rule("BatchNormalization")
def _batch_normalisation(node: Node) -> Division:
    shape = node.result.shape
    operands: dict[int, Windows] = {0: identity(len(shape))} | {i: (Window(1),) for i in range(1, len(node.inputs))}
    return Division(tuple(range(len(shape))), operands)


def _spatial(node: Node, taps: Shape, data: Shape, positions: Shape) -> list[Window] | None:
    """Windows of the spatial dimensions of a convolution or pooling; None where padding cannot be told."""
    rank = len(taps)
    strides = node.integers("strides") or [1] * rank
    dilations = node.integers("dilations") or [1] * rank
    pads = _begin_pads(node, taps, data, positions, strides, dilations)
    if pads is None or not len(strides) == len(dilations) == len(pads) == rank:
        return None
    return [Window(2 + axis, strides[axis], 1, -pads[axis], (taps[axis] - 1) * dilations[axis] - pads[axis]) for axis in range(rank)]


def _begin_pads(node: Node, taps: Shape, data: Shape, positions: Shape, strides: list[int], dilations: list[int]) -> list[int] | None:
    """Padding before the first element of every spatial dimension."""
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return (node.integers("pads") or [0] * len(taps))[: len(taps)]
    if mode == "VALID":
        return [0] * len(taps)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    sizes = zip(taps, data[2:], positions, strides, dilations, strict=True)
    totals = [max(0, (count - 1) * stride + (tap - 1) * dilation + 1 - size) for tap, size, count, stride, dilation in sizes]
    return [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]


def _convolution(node: Node, data: int, weight: int, bias: int) -> Division:
    filters, result = node.shape(weight), node.result.shape
    groups = node.attrs.get("group", 1)
    spatial = _spatial(node, filters[2:], node.shape(data), result[2:])
    if spatial is None or len(result) != len(filters):
        return WHOLE
    channels = Window(1, 1, filters[0] // groups, unit=filters[1]) if groups > 1 else ALL
    operands: dict[int, Windows] = {
        data: (Window(0), channels, *spatial),
        weight: (Window(1), *(ALL for _ in filters[1:])),
    }
    if node.optional(bias):
        operands[bias] = (Window(1),)
    loops = ("batch", "channels", *("y" for _ in result[3:]), "x")
    return Division(tuple(range(len(result))), operands, loops)


@_rule("Conv", "ConvInteger")
def _plain_convolution(node: Node) -> Division:
    return _convolution(node, 0, 1, 2)


@_rule("FusedConv")
def _fused_convolution(node: Node) -> Division:
    found = _convolution(node, 0, 1, 2)
    if node.optional(3):
        found.operands[3] = aligned(node.shape(3), node.result.shape)
    return found


@_rule("QLinearConv")
def _quantised_convolution(node: Node) -> Division:
    return _convolution(node, 0, 3, 8)


@_rule("ConvTranspose")
def _transposed_convolution(node: Node) -> Division:
    """Its loops run over input pixels, which rows of the result share: only channels and batch divide."""
    filters, result = node.shape(1), node.result.shape
    if node.attrs.get("group", 1) != 1:
        return WHOLE
    free = [ALL for _ in filters[2:]]
    operands: dict[int, Windows] = {0: (Window(0), ALL, *free), 1: (ALL, Window(1), *free)}
    if node.optional(2):
        operands[2] = (Window(1),)
    return Division((0, 1), operands, ("batch", "channels", *("" for _ in result[2:])))


@_rule("MaxPool", "AveragePool", "LpPool")
def _pooling(node: Node) -> Division:
    result = node.result.shape
    spatial = _spatial(node, tuple(node.integers("kernel_shape") or ()), node.shape(0), result[2:])
    if spatial is None or len(spatial) != len(result) - 2:
        return WHOLE
    return Division(tuple(range(len(result))), {0: (Window(0), Window(1), *spatial)})


@_rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "InstanceNormalization")
def _by_plane(node: Node) -> Division:
    rank = len(node.shape(0))
    operands: dict[int, Windows] = {0: (Window(0), Window(1), *(ALL for _ in range(rank - 2)))}
    operands |= {i: (Window(1),) for i in range(1, len(node.inputs))}
    return Division((0, 1), operands)


@_rule("LRN")
def _local_response(node: Node) -> Division:
    rank, size = len(node.result.shape), node.attrs["size"]
    across = Window(1, 1, 1, -((size - 1) // 2), size // 2)
    return Division(tuple(range(rank)), {0: (Window(0), across, *(Window(axis) for axis in range(2, rank)))})


def _along(rank: int, axes: set[int]) -> Division:
    """Work along some axes of a tensor that keeps its shape."""
    return Division(tuple(a for a in range(rank) if a not in axes), {0: tuple(ALL if a in axes else Window(a) for a in range(rank))})


@_rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: Node) -> Division:
    rank = len(node.result.shape)
    modern = node.opset == 0 or node.opset >= 13
    axis = node.attrs.get("axis", -1 if modern else 1) % rank
    return _along(rank, {axis} if modern and axis == rank - 1 else set(range(axis, rank)))


@_rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _layer_normalisation(node: Node) -> Division:
    rank = len(node.result.shape)
    return _along(rank, set(range(node.attrs.get("axis", -1) % rank, rank)))


@_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip_normalisation(node: Node) -> Division:
    rank = len(node.result.shape)
    found = _along(rank, {rank - 1})
    if node.shape(1) == node.result.shape:
        found.operands[1] = found.operands[0]
    return found


@_rule(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
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


@_rule("Transpose")
def _transpose(node: Node) -> Division:
    rank = len(node.result.shape)
    order = node.integers("perm") or list(range(rank))[::-1]
    return Division(tuple(range(rank)), {0: tuple(Window(order.index(axis)) for axis in range(rank))})


@_rule("Concat")
def _concatenation(node: Node) -> Division:
    rank = len(node.result.shape)
    axis = node.attrs.get("axis", 1) % rank
    operands: dict[int, Windows] = {}
    start = 0
    for index, value in enumerate(node.inputs):
        if value:
            operands[index] = tuple(Window(a, low=-start, high=-start) if a == axis else Window(a) for a in range(rank))
            start += value.shape[axis]
    # Along the axis itself a piece would read some of the operands only.
    return Division(tuple(a for a in range(rank) if a != axis), operands)


@_rule("Pad")
def _padding(node: Node) -> Division:
    rank = len(node.result.shape)
    pads = node.integers("pads", 1) or node.integers("paddings")
    if not pads or len(pads) != 2 * rank or node.attrs.get("mode", "constant") != "constant":
        return WHOLE
    return Division(tuple(range(rank)), {0: tuple(Window(a, low=-pads[a], high=-pads[a]) for a in range(rank))})


@_rule("Slice")
def _slice(node: Node) -> Division:
    """Without steps: with them a piece would seem to read what it passes over."""
    rank, data = len(node.result.shape), node.shape(0)
    starts = node.integers("starts", 1)
    axes = node.integers("axes", 3) or list(range(len(starts or ())))
    steps = node.integers("steps", 4) or [1] * len(axes)
    if starts is None or not len(starts) == len(axes) == len(steps) or any(step != 1 for step in steps):
        return WHOLE
    windows = list(identity(rank))
    for axis, start in zip(axes, starts, strict=True):
        extent = data[axis % rank]
        begin = min(max(start + extent if start < 0 else start, 0), extent)
        windows[axis % rank] = Window(axis % rank, low=begin, high=begin)
    return Division(tuple(range(rank)), {0: tuple(windows)})


@_rule("Upsample", "Resize")
def _resize(node: Node) -> Division:
    """Nearest and linear: at most one neighbour beyond the position on either side."""
    data, result = node.shape(0), node.result.shape
    if node.attrs.get("mode", "nearest") not in ("nearest", "linear", "bilinear") or node.attrs.get("coordinate_transformation_mode") == (
        "tf_crop_and_resize"
    ):
        return WHOLE
    windows = []
    for axis, (before, after) in enumerate(zip(data, result, strict=True)):
        common = math.gcd(before, after)
        numerator, denominator = before // common, after // common
        windows.append(Window(axis) if before == after else Window(axis, numerator, denominator, -denominator, denominator))
    return Division(tuple(range(len(result))), {0: tuple(windows)})


@_rule("DepthToSpace")
def _depth_to_space(node: Node) -> Division:
    block = node.attrs["blocksize"]
    return Division((0, 2, 3), {0: (Window(0), ALL, Window(2, 1, block), Window(3, 1, block))})


@_rule("SpaceToDepth")
def _space_to_depth(node: Node) -> Division:
    block = node.attrs["blocksize"]
    return Division((0, 2, 3), {0: (Window(0), ALL, Window(2, block, 1, 0, block - 1), Window(3, block, 1, 0, block - 1))})


def _matrix_product(node: Node, a: int, b: int) -> Division:
    """Rows and columns, and every dimension before them; see ``matrix_nest`` for the loops that they are."""
    left, right, result = node.shape(a), node.shape(b), node.result.shape
    if len(left) < 2 or len(right) < 2:
        return WHOLE
    rank = len(result)
    lead = result[:-2]
    windows_a = (*aligned(left[:-2], lead), Window(rank - 2), ALL)
    windows_b = (*aligned(right[:-2], lead), ALL, Window(rank - 1))
    shared = (1,) * (len(lead) - len(right) + 2) + right[:-2]
    one_product = all(other == 1 for other in shared)
    names = tuple("y" if one_product else "batch" if other == 1 else "groups" for other in shared)
    return Division(tuple(range(rank)), {a: windows_a, b: windows_b}, (*names, "y", "channels"))


@_rule("MatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")
def _plain_matrix_product(node: Node) -> Division:
    return _matrix_product(node, 0, 1)


@_rule("QLinearMatMul")
def _quantised_matrix_product(node: Node) -> Division:
    return _matrix_product(node, 0, 3)


@_rule("Gemm", "FusedGemm")
def _general_matrix_product(node: Node) -> Division:
    a = (ALL, Window(0)) if node.attrs.get("transA") else (Window(0), ALL)
    b = (Window(1), ALL) if node.attrs.get("transB") else (ALL, Window(1))
    operands: dict[int, Windows] = {0: a, 1: b}
    if node.optional(2):
        operands[2] = aligned(node.shape(2), node.result.shape)
    return Division((0, 1), operands, ("y", "channels"))
