"""Rules of elementwise operators, and of operators that move, select or resize elements."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.rules import (
    EVERY,
    NCHWC,
    REPLANNED,
    WHOLE,
    Division,
    KnownShape,
    Node,
    Result,
    Value,
    Work,
    aligned,
    along,
    divided,
    rule,
    runtime_rule,
    storage_bytes,
    variant,
    with_first_type,
)
from loadmaster.workloads.graph import OpClass
from loadmaster.workloads.window import ALL, Window, Windows, identity


def elementwise(node: Node, data: int = 0) -> Work:
    """Count one operation for each element of the largest result; operand ``data`` decides the
    width."""
    largest = max(value.count for value in node.results)
    return Work(OpClass.ELEMENTWISE, elements=largest, data=data)


def by_element(node: Node) -> Division:
    """Division of an elementwise operator: each element needs the matching element of each operand;
    operands that do not broadcast are needed as a whole, also those of before opset 7, when an
    attribute said to what."""
    shape = node.result.shape
    given = ((i, value.shape) for i, value in enumerate(node.inputs) if value)
    return Division(
        tuple(range(len(shape))),
        {i: aligned(own, shape) for i, own in given if node.opset >= 7 or own == shape},
    )


def _steps_per_element(steps: int, node: Node) -> Work:
    """Return element-wise work of ``steps`` operations for each element of the result."""
    return Work(OpClass.ELEMENTWISE, elements=steps * node.result.count)


def only_operand(node: Node, source: Value) -> bool:
    """Whether the other operands hold no elements."""
    return (
        all(value is source or value.count == 0 for value in node.present)
        and node.inputs.count(source) == 1
    )


def always(_: Node, __: Value) -> bool:
    """A view rule for operators that never move elements."""
    return True


def _same_storage(node: Node, source: Value) -> bool:
    """Whether a cast is a view: between types of equal storage, but not to a quantised type."""
    result = node.result
    types = {source.dtype, result.dtype}
    return source.stored == result.stored and (len(types) == 1 or types <= {*REPLANNED})


def _inference(node: Node, _: Value) -> bool:
    """Whether a Dropout is not in training mode: from opset 12 on an operand, up to opset 6 an
    attribute."""
    training = node.optional(2)
    if training is None:
        return bool(node.attrs.get("is_test", node.opset >= 7))
    return training.data is not None and not training.data.any()


def _quantised_division(node: Node) -> Division:
    """Division of (de)quantisation: scales and zero points are per tensor, per element of an axis,
    or per block along it."""
    shape = node.result.shape
    axis = node.attrs.get("axis", 1) % len(shape)
    block = node.attrs.get("block_size")
    operands: dict[int, Windows] = {0: identity(len(shape))}
    for index in range(1, len(node.inputs)):
        scales = node.shape(index) if node.optional(index) else ()
        if len(scales) == 1 and scales[0] == shape[axis]:
            operands[index] = (Window(axis),)
        elif len(scales) == len(shape) and block:
            operands[index] = identity(len(shape), {axis: Window(axis, 1, block)})
    return Division(tuple(range(len(shape))), operands)


def _update(node: Node) -> Work:
    """Work of an optimiser step, about two operations per element of each operand: decay, square,
    average, root, scale and subtract."""
    return Work(
        OpClass.ELEMENTWISE,
        elements=2 * sum(each.count for each in node.inputs[2:] if each),
        data=2,
    )


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
rule("QuantizeLinear", elementwise, _quantised_division)
rule("DequantizeLinear", elementwise, _quantised_division, view=always)
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
    lambda node: replace(elementwise(node), touched={0: 0}),
)
# Angle, cosine, factor and sum for each of a window's cosines.
rule("HannWindow HammingWindow", partial(_steps_per_element, 4), by_element, planning=(0,))
rule("BlackmanWindow", partial(_steps_per_element, 8), by_element, planning=(0,))
# Two slopes, the smaller of them, and its positive part.
rule("MelWeightMatrix", partial(_steps_per_element, 4), planning=(0, 1, 2, 3, 4))
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

CHANNEL_BLOCK = 8
"""Channels in a block with 256-bit vectors; a file does not say which vectors it was optimised
for."""


def movement(_: Node) -> Work:
    """Copy bytes, without arithmetic."""
    return Work(OpClass.MOVEMENT)


def part_of(value: Value, count: int) -> int:
    """Return the bytes of ``count`` elements of a tensor, at most of all."""
    return min(value.bytes, storage_bytes(count, value.stored))


def _selection(node: Node) -> Work:
    """Count only the bytes that are selected."""
    taken = part_of(node.operand(0), sum(value.count for value in node.results))
    return Work(OpClass.MOVEMENT, touched={0: taken})


def _same_shape(node: Node, source: Value) -> bool:
    """Whether an operand has the shape of the result."""
    return source.shape == node.result.shape


def _everywhere(node: Node, windows: Windows) -> Division:
    """Division along all dimensions of the result, with the given windows of the operand."""
    return Division(tuple(range(node.rank)), {0: windows})


def _transpose_division(node: Node) -> Division:
    """Return how a Transpose divides: each dimension reads the one it comes from."""
    order, _ = node.permutation(node.shape(0))
    return divided({0: tuple(Window(order.index(axis)) for axis in range(len(order)))}, copies=True)


def _keeps_order(node: Node, source: Value) -> bool:
    """Whether a Transpose is a view: only axes of size 1 move, or the operand is a constant, which
    can be stored transposed."""
    return source.constant or not node.permutation(source.shape)[1]


def _concat_division(node: Node) -> Division:
    """Return how a Concat divides: each input is read at its offset along the axis. It is a pure
    copy unless an input occurs twice."""
    rank = node.rank
    axis = node.attrs.get("axis", 1) % rank
    operands: dict[int, Windows] = {}
    start = 0
    for index, value in enumerate(node.inputs):
        if value:
            operands[index] = identity(rank, {axis: Window(axis, low=-start, high=-start)})
            start += value.shape[axis]
    return divided(operands, copies=len(set(node.inputs)) == len(node.inputs))


def _tile_division(node: Node) -> Division:
    """Division of Tile: repeated dimensions are needed as a whole, because positions wrap
    around."""
    data, result = node.shape(0), node.result.shape
    shift = len(result) - len(data)
    if shift < 0:
        return WHOLE
    sizes = enumerate(zip(data, result[shift:], strict=True), shift)
    return _everywhere(node, tuple(Window(axis) if a == b else ALL for axis, (a, b) in sizes))


def _pad_division(node: Node) -> Division:
    """Division of Pad: modes other than constant repeat elements, so padded dimensions are needed
    as a whole."""
    rank = node.rank
    given = node.integers("pads", 1) or node.integers("paddings")
    axes = node.integers("axes", 3) if node.optional(3) else list(range(rank))
    if not given or axes is None or len(given) != 2 * len(axes):
        return WHOLE
    if node.attrs.get("mode", "constant") != "constant":
        ends = zip(axes, given, given[len(axes) :], strict=False)
        return along(node, [axis for axis, *both in ends if any(both)])
    before = [(axis % rank, pad) for axis, pad in zip(axes, given, strict=False)]
    return divided({0: identity(rank, {a: Window(a, low=-pad, high=-pad) for a, pad in before})})


def _pads_nothing(node: Node, _: Value) -> bool:
    """Whether a Pad adds nothing, so that it is a view; unknown paddings count as padding."""
    return not any(node.integers("pads", 1) or node.integers("paddings") or [1])


def _slice_division(node: Node) -> Division:
    """Division of Slice: a piece needs the range from its first to its last element; with negative
    steps, the whole dimension."""
    rank, data = node.rank, node.shape(0)
    starts = node.integers("starts", 1)
    axes = node.integers("axes", 3) or list(range(len(starts or ())))
    steps = node.integers("steps", 4) or [1] * len(axes)
    unknown = any(value and value.data is None for value in node.inputs[1:])
    if unknown or starts is None or not len(starts) == len(axes) == len(steps):
        return WHOLE
    windows = {}
    for given, start, step in zip(axes, starts, steps, strict=True):
        axis = given % rank
        begin, *_ = slice(start, None).indices(data[axis])
        windows[axis] = Window(axis, step, 1, begin, begin) if step > 0 else ALL
    return _everywhere(node, identity(rank, windows))


def _is_whole_slice(node: Node, source: Value) -> bool:
    """Whether a Slice is a view: it keeps all elements in order."""
    steps = node.integers("steps", 4) if node.optional(4) else []
    return _same_shape(node, source) and steps is not None and all(step > 0 for step in steps)


def _gather_division(node: Node) -> Division:
    """Division of Gather with one constant index or consecutive ones; other indices are only known
    at run time."""
    indices, data = node.operand(1), node.shape(0)
    chosen, axis = indices.integers(), node.attrs.get("axis", 0) % len(data)
    # Indices below 0 count from the end.
    places = [index + data[axis] if index < 0 else index for index in chosen or ()]
    if (
        not places
        or len(indices.shape) > 1
        or places != list(range(places[0], places[0] + len(places)))
    ):
        return WHOLE
    first, kept = places[0], len(indices.shape)
    here = Window(axis if kept else 0, kept, 1, first, first)
    later = (Window(d - 1 + kept) for d in range(axis + 1, len(data)))
    return divided({0: (*identity(axis), here, *later)})


def _by_blocks(node: Node) -> Division:
    """Return how DepthToSpace and SpaceToDepth divide: a row or column is a block of rows or
    columns on the other side."""
    block = node.attrs["blocksize"]
    blocks = (
        Window(axis, 1, block)
        if node.kind == "DepthToSpace"
        else Window(axis, block, 1, 0, block - 1)
        for axis in (2, 3)
    )
    return divided({0: (Window(0), ALL, *blocks)})


rule("Transpose", movement, _transpose_division, view=_keeps_order)
rule("Concat", movement, _concat_division, view=only_operand)
rule("Reshape Flatten Squeeze Unsqueeze", movement, view=always, planning=(1,))
rule("Expand Tile", movement, _tile_division, view=_same_shape, planning=(1,))
rule("Trilu", movement, lambda node: _everywhere(node, identity(node.rank)))
rule("Pad", movement, _pad_division, view=_pads_nothing, planning=(1, 2, 3))
rule("DepthToSpace SpaceToDepth", movement, _by_blocks)


def _gather_nd_shape(node: Node) -> list[Result]:
    """Return type and shape of a GatherND, also of one element, whose shape ONNX does not infer."""
    *leading, depth = node.shape(1) or (0,)
    batches, rank = node.attrs.get("batch_dims", 0), len(node.shape(0))
    if not 0 <= batches <= rank - depth:
        raise ModelError(
            f"its batch_dims {batches} is out of range for indices of {depth} of {rank} dimensions:"
            " export the network again"
        )
    return with_first_type(node, (*leading, *node.shape(0)[batches + depth :]))


def _block_lookup(node: Node) -> Work:
    """Return the work of a lookup in a table quantised in blocks: of the table, its scales and zero
    points only the rows that are looked up."""
    sizes = node.shape(0)
    extent = sizes[node.attrs.get("gather_axis", 0) % len(sizes)]
    rows = min(extent, node.operand(1).count)
    values = ((index, node.optional(index)) for index in (0, 2, 3))
    touched: dict[int | str, int] = {
        index: -(-value.bytes * rows // max(1, extent)) for index, value in values if value
    }
    return Work(OpClass.ELEMENTWISE, elements=2 * node.result.count, touched=touched)


def _block_lookup_shape(node: Node) -> list[Result]:
    """Return the shape of a lookup in a quantised table, whose bytes may hold several elements."""
    data = node.operand(0)
    packed = 8 // node.attrs.get("bits", 4) if data.dtype == "uint8" else 1
    shape = *data.shape[:-1], data.shape[-1] * packed
    axis = node.attrs.get("gather_axis", 0) % len(shape)
    found = *shape[:axis], *node.shape(1), *shape[axis + 1 :]
    return [(node.operand(2).dtype, found)]


runtime_rule("GatherBlockQuantized", _block_lookup, shapes=_block_lookup_shape)
rule(
    """
    AffineGrid Col2Im Compress GridSample MaxUnpool NonZero ReverseSequence Scatter ScatterElements
    ScatterND TensorScatter
    """,
    movement,
)
rule("OneHot Range", movement, planning=(1,))
rule("CenterCropPad", movement, planning=(1, 2, 3))
rule("ConstantOfShape EyeLike", movement, planning=(0,))

rule("Slice", _selection, _slice_division, view=_is_whole_slice, planning=(1, 2, 3, 4))
rule("Gather", _selection, _gather_division)
rule("GatherElements", _selection)
rule("GatherND", _selection, shapes=_gather_nd_shape)
rule("Split", _selection, view=_same_shape, planning=(1,))


def _into_blocks(node: Node) -> list[Result]:
    """Return type and shape of a result in blocked layout: channels are padded to whole blocks."""
    batch, *rest = node.shape(0)
    channels = rest.pop(-1 if node.attrs.get("channels_last") else 0)
    padded = -(-channels // CHANNEL_BLOCK) * CHANNEL_BLOCK
    return with_first_type(node, (batch, padded, *rest))


def _out_of_blocks(node: Node) -> list[Result]:
    """Return type and shape of a result that leaves blocked layout: an attribute states the number
    of channels."""
    batch, _, *shape = node.shape(0)
    shape.insert(len(shape) if node.attrs.get("channels_last") else 0, node.attrs["channels"])
    return with_first_type(node, (batch, *shape))


def _scaled_shape(node: Node) -> list[Result]:
    """Return type and shape of the result of an Upsample with ``scales``."""
    sizes = zip(node.shape(0), node.attrs["scales"], strict=True)
    return with_first_type(node, tuple(size * scale for size, scale in sizes))


# Operands come in threes (tensor, scale, zero point) after the result's scale and zero point.
runtime_rule(
    "QLinearConcat",
    lambda node: replace(movement(node), data=2),
    like="Concat",
    operands=range(2, EVERY.stop, 3),
)
rule("ReorderInput", movement, shapes=_into_blocks, domain=NCHWC)
rule("ReorderOutput", movement, shapes=_out_of_blocks, domain=NCHWC)
rule("Upsample", movement, shapes=_scaled_shape, domain=NCHWC)

_HALF = Fraction(1, 2)


def _resize(node: Node) -> Division:
    """Division of Resize: each element needs one, two or four neighbours along a dimension."""
    data, result = node.shape(0), node.result.shape
    scales = _stated_scales(node)
    stretched = node.attrs.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    if scales == [] and stretched and all(data):
        scales = list(map(Fraction, result, data))
    if not scales or node.attrs.get("antialias") or (data == result and {*scales} != {1}):
        # Implementations differ in what a result of the same shape is.
        return WHOLE
    windows = []
    for axis, (before, after, scale) in enumerate(zip(data, result, scales, strict=True)):
        position, neighbours = _position(node, before, after, scale), _neighbours(node, scale)
        if position is None or neighbours is None:
            return WHOLE
        windows.append(
            Window(axis)
            if before == after and scale == 1
            else _window_of_neighbours(axis, before, after, position, neighbours)
        )
    return divided({0: tuple(windows)})


def _attribute(node: Node, name: str, default: str, before_opset_11: str) -> str:
    """Return a text attribute of Resize, or the default of its opset."""
    modern = node.kind == "Resize" and node.opset >= 11
    return str(node.attrs.get(name, default if modern else before_opset_11))


def _stated_scales(node: Node) -> list[Fraction] | None:
    """Scale factors of every dimension that Resize or Upsample states; empty if it states none,
    None if they are not known."""
    given = node.attrs.get("scales")
    value = node.optional(1 if node.kind == "Upsample" or node.opset == 10 else 2)
    if given is None and value is not None and value.count:
        if value.data is None:
            return None
        given = value.data.ravel().tolist()
    if given is None:
        return []
    rank = len(node.shape(0))
    axes = node.integers("axes") or list(range(rank))
    if len(given) != len(axes) or not all(0 < scale < math.inf for scale in given):
        return None
    found = [Fraction(1)] * rank
    for axis, scale in zip(axes, given, strict=True):
        found[axis] = Fraction(scale)
    return found


def _scaled(node: Node, inferred: KnownShape) -> KnownShape:
    """Shape of the result: by stated scales, which inference does not round to single precision."""
    scales = _stated_scales(node)
    if not scales:
        return inferred
    sizes = np.array(node.shape(0), np.float32) * np.array(scales, np.float32)
    return tuple(sizes.astype(int).tolist())


def _position(
    node: Node, before: int, after: int, scale: Fraction
) -> tuple[Fraction, Fraction] | None:
    """Slope and offset of the position in the operand as a function of the one in the result."""
    mode = _attribute(node, "coordinate_transformation_mode", "half_pixel", "asymmetric")
    if after == 1 and mode in ("pytorch_half_pixel", "align_corners"):
        return Fraction(0), Fraction(0)
    if node.attrs.get("fixed_point"):
        # Integer kernels of `.tflite` files count positions in 1/1024.
        aligned = mode == "align_corners"
        step = (1024 * (before - aligned) + (after - aligned) // 2) // (after - aligned)
        offset = step // 2 - 512 if mode == "half_pixel" else 0
        return Fraction(step, 1024), Fraction(offset, 1024)
    if mode == "align_corners":
        # Implementations differ in which corner it is that they align.
        fits = scale * before == after
        return (Fraction(before - 1, max(1, after - 1)), Fraction(0)) if fits else None
    centred = _HALF / scale - _HALF
    offsets = {
        "asymmetric": Fraction(0),
        "half_pixel": centred,
        "pytorch_half_pixel": centred,
        "tf_half_pixel_for_nn": _HALF / scale,
    }
    return (1 / scale, offsets[mode]) if mode in offsets else None


def _neighbours(node: Node, scale: Fraction) -> tuple[int, int] | None:
    """Offsets from a position, rounded down, to its first and last neighbour. Whatever is nearest
    is one of the two beside it; before opset 11, where the result is smaller, the upper one."""
    mode = node.attrs.get("mode", "nearest")
    if mode == "nearest":
        usual = "ceil" if scale < 1 else "floor"
        rounding = _attribute(node, "nearest_mode", "round_prefer_floor", usual)
        return (0, 0) if rounding == "floor" else (0, 1)
    return {"linear": (0, 1), "bilinear": (0, 1), "cubic": (-1, 2)}.get(mode)


def _window_of_neighbours(
    axis: int,
    before: int,
    after: int,
    position: tuple[Fraction, Fraction],
    neighbours: tuple[int, int],
) -> Window:
    """The window of the neighbours of a range of positions; positions outside the operand are
    clamped."""
    slope, offset = position
    whole = math.lcm(slope.denominator, offset.denominator)
    numerator = int(slope * whole)
    low, high = (int((offset + beside) * whole) for beside in neighbours)
    # Where the scale is a binary fraction, short beside single precision, positions are exact.
    if slope.numerator & slope.numerator - 1 or before * whole >= 2**20:
        error = before * whole // 2**21
        low, high = low - error - 1, high + error
    low = min(low, before * whole - 1 - (after - 1) * numerator)
    return Window(axis, numerator, whole, low, max(low, high, 0))


rule("Upsample Resize", movement, _resize, planning=(1, 2, 3), corrected=_scaled)
