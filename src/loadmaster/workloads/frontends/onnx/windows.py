"""Which part of each operand of an ONNX operator a part of its result needs, and along which dimensions the work divides.

What is not listed here is not cut: it stays a job of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from loadmaster.workloads.frontends.onnx.einsum import parse_equation
from loadmaster.workloads.frontends.onnx.types import Node, Shape
from loadmaster.workloads.graph import LoopNest, OpClass
from loadmaster.workloads.window import ALL, Window, identity

Windows = tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How an operator divides: ``axes`` are dimensions of the result that can be cut without repeating work, ``operands`` the windows of
    its operands by position (all of an operand is needed where there are none), ``loops`` the loop of each loop nest that every
    dimension of the result belongs to. ``steps`` says of which numbers of elements the pieces of a dimension are multiples; ``copies``,
    whether the operator only puts elements elsewhere."""

    axes: tuple[int, ...] = ()
    operands: dict[int, Windows] = field(default_factory=dict)
    loops: tuple[str, ...] = ()
    steps: dict[int, int] = field(default_factory=dict)
    copies: bool = False


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
    """Its loops run over input pixels: a row of the result meets those whose taps reach it, and as large a share of the work as it is."""
    filters, data, result = node.shape(1), node.shape(0), node.result.shape
    groups, rank = node.attrs.get("group", 1), len(filters) - 2
    strides = node.integers("strides") or [1] * rank
    dilations = node.integers("dilations") or [1] * rank
    pads = _transposed_pads(node, filters[2:], data[2:], result[2:], strides, dilations)
    if not len(strides) == len(dilations) == len(pads) == rank:
        return WHOLE
    spatial = [_reached(2 + axis, strides[axis], (filters[2 + axis] - 1) * dilations[axis], pads[axis]) for axis in range(rank)]
    inputs = Window(1, 1, filters[1], unit=filters[0] // groups) if groups > 1 else ALL
    free = [ALL for _ in filters[2:]]
    outputs = ALL if groups > 1 else Window(1)
    operands: dict[int, Windows] = {0: (Window(0), inputs, *spatial), 1: (inputs, outputs, *free)}
    if node.optional(2):
        operands[2] = (Window(1),)
    # A piece has a row of input to itself at least.
    steps = {axis: -(-result[axis] // data[axis]) for axis in range(2, len(result))}
    return Division(
        tuple(range(len(result))), operands, ("batch", "channels", *("" for _ in result[4:]), *("y" for _ in result[3:4]), "x"), steps
    )


def _reached(axis: int, stride: int, reach: int, pad: int) -> Window:
    """Input positions of which some tap of a transposed convolution reaches a range of output positions."""
    return Window(axis, 1, stride, min(pad - reach + stride - 1, pad), pad)


def _transposed_pads(node: Node, taps: Shape, data: Shape, positions: Shape, strides: list[int], dilations: list[int]) -> list[int]:
    """What is cut off before the first output of every spatial dimension."""
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0] * len(taps)
    if mode in ("NOTSET", "") and not node.integers("output_shape"):
        return (node.integers("pads") or [0] * len(taps))[: len(taps)]
    more = node.integers("output_padding") or [0] * len(taps)
    sizes = zip(taps, data, positions, strides, dilations, more, strict=True)
    totals = [max(0, (size - 1) * stride + extra + (tap - 1) * dilation + 1 - count) for tap, size, count, stride, dilation, extra in sizes]
    return [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]


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
    """Along one axis from opset 13 on; before, over all dimensions from the axis on together."""
    rank = len(node.result.shape)
    modern = node.opset == 0 or node.opset >= 13
    axis = node.attrs.get("axis", -1 if modern else 1) % rank
    return _along(rank, {axis} if modern else set(range(axis, rank)))


@_rule("CumSum", "CumProd")
def _running_sum(node: Node) -> Division:
    axis, rank = node.integers("axis", 1), len(node.result.shape)
    return _along(rank, {axis[0] % rank}) if axis else WHOLE


@_rule("LpNormalization")
def _length_normalisation(node: Node) -> Division:
    rank = len(node.result.shape)
    return _along(rank, {node.attrs.get("axis", -1) % rank})


@_rule("MeanVarianceNormalization")
def _moment_normalisation(node: Node) -> Division:
    rank = len(node.result.shape)
    axes = node.integers("axes") or [axis for axis in (0, 2, 3) if axis < rank]
    return _along(rank, {axis % rank for axis in axes})


@_rule("GroupNormalization")
def _group_normalisation(node: Node) -> Division:
    """A group of channels is normalised together; scale and bias have a number for each channel, or before opset 21 for each group."""
    shape, groups = node.result.shape, node.attrs["num_groups"]
    if shape[1] % groups:
        return WHOLE
    each = shape[1] // groups
    found = _along(len(shape), set(range(2, len(shape))))
    channels = Window(1, 1, each, unit=each)
    found.operands[0] = (Window(0), channels, *found.operands[0][2:])
    found.operands.update({i: (Window(1) if node.shape(i)[0] == shape[1] else Window(1, 1, each),) for i in (1, 2)})
    return Division(found.axes, found.operands, steps={1: each})


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


@_rule("ArgMax", "ArgMin")
def _largest(node: Node) -> Division:
    rank = len(node.shape(0))
    axis = node.attrs.get("axis", 0) % rank
    keeps = bool(node.attrs.get("keepdims", 1))
    windows = tuple(ALL if d == axis else Window(d - (d > axis and not keeps)) for d in range(rank))
    return Division(tuple(window.axis for window in windows if window.axis >= 0), {0: windows})


@_rule("Transpose")
def _transpose(node: Node) -> Division:
    rank = len(node.result.shape)
    order = node.integers("perm") or list(range(rank))[::-1]
    return Division(tuple(range(rank)), {0: tuple(Window(order.index(axis)) for axis in range(rank))}, copies=True)


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
    return Division(tuple(range(rank)), operands, copies=len(set(node.inputs)) == len(node.inputs))


@_rule("Expand")
def _expansion(node: Node) -> Division:
    shape = node.result.shape
    return Division(tuple(range(len(shape))), {0: aligned(node.shape(0), shape)})


@_rule("Tile")
def _repetition(node: Node) -> Division:
    """What is repeated is needed as a whole: where in it a piece begins is no linear function."""
    data, result = node.shape(0), node.result.shape
    if len(data) != len(result):
        return WHOLE
    windows = tuple(Window(axis) if before == after else ALL for axis, (before, after) in enumerate(zip(data, result, strict=True)))
    return Division(tuple(range(len(result))), {0: windows})


@_rule("Trilu")
def _triangle(node: Node) -> Division:
    rank = len(node.result.shape)
    return Division(tuple(range(rank)), {0: identity(rank)})


@_rule("Pad")
def _padding(node: Node) -> Division:
    """What is not constant repeats elements, and is needed as a whole along the dimensions that are padded."""
    rank = len(node.result.shape)
    pads = _pads_before(node, rank)
    if pads is None:
        return WHOLE
    if node.attrs.get("mode", "constant") != "constant":
        return _along(rank, {axis for axis in range(rank) if node.shape(0)[axis] != node.result.shape[axis]})
    return Division(tuple(range(rank)), {0: tuple(Window(a, low=-pads[a], high=-pads[a]) for a in range(rank))})


def _pads_before(node: Node, rank: int) -> list[int] | None:
    """Padding before the first element of every dimension; None where it is not known."""
    given = node.integers("pads", 1) or node.integers("paddings")
    axes = node.integers("axes", 3) if node.optional(3) else list(range(rank))
    if not given or axes is None or len(given) != 2 * len(axes):
        return None
    before = dict.fromkeys(range(rank), 0) | {axis % rank: pad for axis, pad in zip(axes, given, strict=False)}
    return [before[axis] for axis in range(rank)]


@_rule("Slice")
def _slice(node: Node) -> Division:
    """A piece reads what steps pass over, but for what lies before its first element and behind its last; backwards it needs all."""
    rank, data = len(node.result.shape), node.shape(0)
    starts = node.integers("starts", 1)
    axes = node.integers("axes", 3) or list(range(len(starts or ())))
    steps = node.integers("steps", 4) or [1] * len(axes)
    if starts is None or not len(starts) == len(axes) == len(steps):
        return WHOLE
    windows = list(identity(rank))
    for axis, start, step in zip(axes, starts, steps, strict=True):
        extent = data[axis % rank]
        begin = min(max(start + extent if start < 0 else start, 0), extent)
        windows[axis % rank] = Window(axis % rank, step, 1, begin, begin) if step > 0 else ALL
    return Division(tuple(range(rank)), {0: tuple(windows)})


@_rule("Gather")
def _selection(node: Node) -> Division:
    """One element of a dimension, or some that follow one another; others are known only at run time."""
    indices, data = node.operand(1), node.shape(0)
    chosen, axis = indices.integers(), node.attrs.get("axis", 0) % len(data)
    # Indices below 0 count from the end.
    places = [index + data[axis] if index < 0 else index for index in chosen or ()]
    if not places or len(indices.shape) > 1 or places != list(range(places[0], places[0] + len(places))):
        return WHOLE
    first, rank = places[0], len(node.result.shape)
    here = Window(axis, low=first, high=first) if indices.shape else Window(0, 0, 1, first, first)
    later = 0 if indices.shape else 1
    windows = (*identity(axis), here, *(Window(d - later) for d in range(axis + 1, len(data))))
    return Division(tuple(range(rank)), {0: windows})


@_rule("Upsample", "Resize")
def _resize(node: Node) -> Division:
    """The neighbours of every position: one, two or four along a dimension."""
    data, result = node.shape(0), node.result.shape
    scales = _scales(node, data, result)
    if scales is None or node.attrs.get("antialias", 0) or len(data) != len(result):
        return WHOLE
    windows = []
    for axis, (before, after, scale) in enumerate(zip(data, result, scales, strict=True)):
        position = _position(node, before, after, scale)
        neighbours = _neighbours(node)
        if position is None or neighbours is None:
            return WHOLE
        windows.append(Window(axis) if before == after and scale == 1 else _nearby(axis, before, after, position, neighbours))
    return Division(tuple(range(len(result))), {0: tuple(windows)})


def _scales(node: Node, data: Shape, result: Shape) -> list[Fraction] | None:
    """Elements of the result for one of the operand, along every dimension; None where they are not known."""
    given = node.attrs.get("scales")
    value = node.optional(1 if node.kind == "Upsample" or node.opset == 10 else 2)
    if given is None and value is not None and value.count:
        if value.data is None:
            return None
        given = value.data.ravel().tolist()
    if given is None:
        stretched = node.attrs.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        return [Fraction(after, before) for before, after in zip(data, result, strict=True)] if stretched else None
    axes = node.integers("axes") or list(range(len(data)))
    if len(given) != len(axes):
        return None
    found = dict.fromkeys(range(len(data)), Fraction(1)) | {a % len(data): Fraction(g) for a, g in zip(axes, given, strict=True)}
    return [found[axis] for axis in range(len(data))]


def _position(node: Node, before: int, after: int, scale: Fraction) -> tuple[Fraction, Fraction] | None:
    """Slope and offset of the position in the operand as a function of the one in the result."""
    half = Fraction(1, 2)
    modern = node.kind == "Resize" and (node.opset == 0 or node.opset >= 11)
    mode = node.attrs.get("coordinate_transformation_mode", "half_pixel" if modern else "asymmetric")
    centred = (1 / scale, half / scale - half)
    if after == 1 and mode in ("pytorch_half_pixel", "align_corners"):
        return Fraction(0), Fraction(0)
    if mode == "align_corners" and scale * before != after:
        # Implementations differ in which corner it is that they align.
        return None
    known = {
        "asymmetric": (1 / scale, Fraction(0)),
        "half_pixel": centred,
        "pytorch_half_pixel": centred,
        "tf_half_pixel_for_nn": (1 / scale, half / scale),
        "align_corners": (Fraction(before - 1, max(1, after - 1)), Fraction(0)),
        "half_pixel_symmetric": (1 / scale, half / scale - half + Fraction(before, 2) * (1 - Fraction(after) / (scale * before))),
    }
    return known.get(mode)


def _neighbours(node: Node) -> tuple[Fraction, Fraction, bool] | None:
    """What is added to a position, and whether it is rounded up then, to find the first and the last neighbour."""
    mode = node.attrs.get("mode", "nearest")
    if mode in ("linear", "bilinear"):
        return Fraction(0), Fraction(1), False
    if mode == "cubic":
        return Fraction(-1), Fraction(2), False
    half = Fraction(1, 2)
    modern = node.kind == "Resize" and (node.opset == 0 or node.opset >= 11)
    rounding = node.attrs.get("nearest_mode", "round_prefer_floor" if modern else "floor")
    shifts = {"floor": (Fraction(0), False), "ceil": (Fraction(0), True), "round_prefer_ceil": (half, False)}
    shift, up = shifts.get(rounding, (-half, True))
    return (shift, shift, up) if mode == "nearest" else None


def _nearby(axis: int, before: int, after: int, position: tuple[Fraction, Fraction], neighbours: tuple[Fraction, Fraction, bool]) -> Window:
    """The neighbours of a range of positions; of those outside the operand, the nearest element stands for them."""
    (slope, offset), (first, last, up) = position, neighbours
    whole = math.lcm(slope.denominator, (offset + first).denominator, (offset + last).denominator)
    numerator, more = int(slope * whole), whole - 1 if up else 0
    low, high = int((offset + first) * whole) + more, int((offset + last) * whole) + more
    low = min(low, before * whole - 1 - (after - 1) * numerator)
    return Window(axis, numerator, whole, low, max(low, high, 0))


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
    if not left or not right or not result:
        return WHOLE
    rank = len(result)
    lead = result[: rank - (len(left) > 1) - (len(right) > 1)]
    columns = () if len(right) == 1 else (ALL, Window(rank - 1))
    rows = () if len(left) == 1 else (Window(len(lead)), ALL)
    windows_a = (*aligned(left[:-2], lead), *rows) or (ALL,)
    windows_b = (*aligned(right[:-2], lead), *columns) or (ALL,)
    shared = (1,) * (len(lead) - len(right[:-2])) + right[:-2]
    one_product = all(other == 1 for other in shared)
    names = tuple("y" if one_product else "batch" if other == 1 else "groups" for other in shared)
    return Division(
        tuple(range(rank)), {a: windows_a, b: windows_b}, (*names, *(["y"] if rows else []), *(["channels"] if columns else []))
    )


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


@_rule("FusedMatMul", "TransposeMatMul")
def _transposing_matrix_product(node: Node) -> Division:
    """A matrix product that takes its operands with the last two dimensions swapped."""
    if node.attrs.get("transBatchA") or node.attrs.get("transBatchB") or min(len(node.shape(0)), len(node.shape(1))) < 2:
        return WHOLE
    found = _matrix_product(node, 0, 1)
    for index, swapped in enumerate(("transA", "transB")):
        windows = found.operands[index]
        if node.attrs.get(swapped):
            found.operands[index] = (*windows[:-2], windows[-1], windows[-2])
    return found


@_rule("MatMulNBits")
def _packed_matrix_product(node: Node) -> Division:
    """Weights, scales and zero points are packed column by column."""
    rank, columns = len(node.result.shape), node.attrs["N"]
    operands: dict[int, Windows] = {0: (*identity(rank - 1), ALL)}
    for index in (1, 2, 3, 5):
        value = node.optional(index)
        if value is not None and value.shape and value.shape[0] % columns == 0:
            each = value.shape[0] // columns
            operands[index] = (Window(rank - 1, unit=each), *(ALL for _ in value.shape[1:]))
    return Division(tuple(range(rank)), operands, (*("y" for _ in range(rank - 1)), "channels"))


@_rule("Einsum")
def _einsum(node: Node) -> Division:
    """Every index of the result belongs to a loop of the one product that it is; see ``contraction`` in ``einsum.py``."""
    terms, target = parse_equation(node.attrs["equation"], [len(value.shape) for value in node.present])
    if len(terms) > 2 or any(len(set(term)) != len(term) for term in terms):
        return WHOLE
    operands: dict[int, Windows] = {}
    used: list[set[str]] = []
    for index, term in enumerate(terms):
        extents = dict(zip(term, node.shape(index), strict=True))
        used.append({label for label, extent in extents.items() if extent > 1})
        operands[index] = tuple(Window(target.index(label)) if label in used[-1] & set(target) else ALL for label in term)
    shared = used[0] & used[-1]
    loops = tuple("groups" if label in shared else "y" if label in used[0] else "channels" for label in target)
    return Division(tuple(range(len(target))), operands, loops)


@_rule("QuantizeLinear", "DequantizeLinear")
def _quantisation(node: Node) -> Division:
    """Scales and zero points: one, one for each element of an axis, or one for each block along it."""
    shape = node.result.shape
    axis, block = node.attrs.get("axis", 1) % len(shape), node.attrs.get("block_size", 0)
    operands: dict[int, Windows] = {0: identity(len(shape))}
    for index in range(1, len(node.inputs)):
        scales = node.shape(index) if node.optional(index) else ()
        if len(scales) == 1 and scales[0] == shape[axis]:
            operands[index] = (Window(axis),)
        elif len(scales) == len(shape) and block:
            operands[index] = tuple(Window(d, 1, block) if d == axis else Window(d) for d in range(len(shape)))
    return Division(tuple(range(len(shape))), operands)


@_rule("RotaryEmbedding")
def _rotation(node: Node) -> Division:
    """Pairs of a head's elements are turned together, so that heads stay whole. Angles are looked up where positions are given."""
    rank, shape = len(node.result.shape), node.shape(0)
    if node.domain == "com.microsoft" or node.optional(3) is not None:
        return Division(tuple(range(rank - 1)), {0: (*identity(rank - 1), ALL)})
    steps = Window(rank - 2)
    heads = node.attrs.get("num_heads", 0)
    angles = {i: (Window(0), steps, ALL) for i in (1, 2)}
    if rank == 4:
        return Division((0, 1, 2), {0: (*identity(3), ALL)} | angles)
    if not heads or shape[-1] % heads:
        return Division((0, 1), {0: (*identity(2), ALL)} | angles)
    each = shape[-1] // heads
    return Division((0, 1, 2), {0: (*identity(2), Window(2, 1, each, unit=each))} | angles, steps={2: each})


@_rule("BiasSplitGelu", "SwiGLU", "MelWeightMatrix", "MurmurHash3", "BitmaskDropout", "BitmaskBiasDropout", "GatedAdd")
def _not_by_position(node: Node) -> Division:
    """Counted as elementwise, yet an element needs others than the matching ones."""
    return WHOLE


@_rule("Attention")
def _attention(node: Node) -> Division:
    """Heads and queries: a band of queries passes through scores, softmax and the weighted sum (FlashAttention, arXiv 2205.14135).

    Query heads that share a key head stay together.
    """
    if node.domain == "com.microsoft" or min(len(node.shape(i)) for i in (0, 1, 2)) < 3:
        return WHOLE
    query, key, value, rank = node.shape(0), node.shape(1), node.shape(2), len(node.result.shape)
    heads, kv_heads = (query[1], key[1]) if rank == 4 else (node.attrs["q_num_heads"], node.attrs["kv_num_heads"])
    if heads % kv_heads:
        return WHOLE
    share = heads // kv_heads
    if rank == 4:
        head, kv_head, step = Window(1), Window(1, 1, share), share
        operands: dict[int, Windows] = {0: (Window(0), head, Window(2), ALL)}
        operands |= {i: (Window(0), kv_head, ALL, ALL) for i in (1, 2, 4, 5) if node.optional(i)}
    else:
        width, kv_width = query[2] // heads, value[2] // kv_heads
        step = share * kv_width
        head, kv_head = Window(2, 1, kv_width), Window(2, 1, step)
        operands = {0: (Window(0), Window(1), replace(head, unit=width))}
        operands |= {1: (Window(0), ALL, replace(kv_head, unit=width)), 2: (Window(0), ALL, replace(kv_head, unit=kv_width))}
        operands |= {i: (Window(0), kv_head, ALL, ALL) for i in (4, 5) if node.optional(i)}
    axes = (0, 1, 2)
    mask = node.shape(3) if node.optional(3) else ()
    if mask:
        order = (Window(0), head, Window(2) if rank == 4 else Window(1), ALL)[4 - len(mask) :]
        operands[3] = tuple(window if extent > 1 else ALL for window, extent in zip(order, mask, strict=True))
    loops = ("groups", "groups", "y", "") if rank == 4 else ("groups", "y", "groups")
    return Division(axes, operands, loops, {1 if rank == 4 else 2: step})
