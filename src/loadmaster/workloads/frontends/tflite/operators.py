"""What each operator of TensorFlow Lite is in ONNX: the kind whose rule says its work and how it
divides, and its operands as that kind orders them.

Options are read by their numbers in the schema. What is not listed here is planned with its true
bytes and no arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.types import Value
from loadmaster.workloads.frontends.tflite.call import (
    Call,
    Laid,
    Meaning,
    as_is,
    channels_second,
    permuted,
    reshaped,
)

_MOVES = "ReverseSequence"
"""Copies, and nothing is known of what divides."""
_REDUCES = "TopK"
"""Counts as a reduction does, and nothing is known of what divides."""
_SAME = 0
"""``Padding``: 0 is SAME, 1 is VALID."""

_Rule = Callable[[Call], Meaning]
_RULES: dict[str, _Rule] = {}


def meaning_of(call: Call) -> Meaning | None:
    """What an operator is in ONNX; None if nothing there is like it."""
    rule = _RULES.get(call.kind)
    return rule(call) if rule else None


def _rule(kinds: str, rule: _Rule) -> None:
    _RULES.update(dict.fromkeys(kinds.split(), rule))


def _table(text: str) -> dict[str, str]:
    """Operators by name; every line has one of ONNX, and those that are like it."""
    lines = (line.split() for line in text.strip().splitlines())
    return {kind: alike for alike, *kinds in lines for kind in kinds}


def _like(kind: str, call: Call, *operands: int, **attributes: Any) -> Meaning:
    """An operator with these operands, or all, as the file orders their dimensions."""
    values = [call.operand(index) for index in operands] or call.inputs
    return Meaning(kind, tuple(map(_as_is, values)), as_is(call.result), attributes)


def _on_images(
    kind: str, call: Call, *others: Laid | None, data: int = 0, **options: Any
) -> Meaning:
    """An operator whose first operand, at position ``data``, and result have channels last."""
    image = channels_second(call.operand(data))
    return Meaning(kind, (image, *others), channels_second(call.result), options)


def _as_is(value: Value | None) -> Laid | None:
    return None if value is None else as_is(value)


BY_ELEMENT = _table(
    """
    Abs ABS
    Add ADD
    And LOGICAL_AND
    BitShift RIGHT_SHIFT
    BitwiseXor BITWISE_XOR
    Cast CAST
    Ceil CEIL
    Cos COS
    Div DIV FLOOR_DIV ATAN2
    Elu ELU
    Equal EQUAL NOT_EQUAL
    Exp EXP
    Floor FLOOR
    Gelu GELU
    Greater GREATER
    GreaterOrEqual GREATER_EQUAL
    HardSwish HARD_SWISH
    LeakyRelu LEAKY_RELU
    Less LESS
    LessOrEqual LESS_EQUAL
    Log LOG
    Max MAXIMUM
    Min MINIMUM
    Mod FLOOR_MOD
    Mul MUL SQUARE
    Neg NEG
    Not LOGICAL_NOT
    Or LOGICAL_OR
    PRelu PRELU
    Pow POW
    QuantizeLinear QUANTIZE FAKE_QUANT DEQUANTIZE
    Relu RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1
    Round ROUND
    Sigmoid LOGISTIC
    Sign SIGN
    Sin SIN
    Sqrt SQRT RSQRT
    Sub SUB SQUARED_DIFFERENCE
    Sum ADD_N
    Tanh TANH
    Where SELECT_V2
    """
)
"""Operators with the same operands in the same order, whose operands are broadcast."""
_ALIKE = BY_ELEMENT | _table(
    f"""
    Cast BITCAST
    ConstantOfShape FILL
    CumSum CUMSUM
    Expand BROADCAST_TO
    GatherND GATHER_ND
    LogSoftmax LOG_SOFTMAX
    LpNormalization L2_NORMALIZATION
    OneHot ONE_HOT
    Range RANGE
    ScatterND SCATTER_ND
    Shape SHAPE VAR_HANDLE
    Size RANK
    Softmax SOFTMAX
    Tile TILE
    {_REDUCES} TOPK_V2
    {_MOVES} REVERSE_SEQUENCE PACK DYNAMIC_UPDATE_SLICE READ_VARIABLE
    """
)
"""All operators with the same operands in the same order."""
for _kind, _alike in _ALIKE.items():
    _rule(_kind, partial(_like, _alike))

_rule("RESHAPE SQUEEZE EXPAND_DIMS", lambda call: _like("Reshape", call, 0))
# The other operands are axes and sizes.
_rule("REVERSE_V2 SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND", lambda call: _like(_MOVES, call, 0))
_rule("SPLIT", lambda call: _like("Split", call, 1))
_rule("SPLIT_V UNPACK", lambda call: _like("Split", call, 0))
_rule("EMBEDDING_LOOKUP", lambda call: _like("Gather", call, 1, 0))
_rule("CONCATENATION", lambda call: _like("Concat", call, axis=call.option(0)))
_rule("ZEROS_LIKE", lambda call: Meaning("ConstantOfShape", (), as_is(call.result)))
_rule("DEPTH_TO_SPACE", lambda call: _on_images("DepthToSpace", call, blocksize=call.option(0)))
_rule("SPACE_TO_DEPTH", lambda call: _on_images("SpaceToDepth", call, blocksize=call.option(0)))
# Over the channels up to a radius on either side.
_rule(
    "LOCAL_RESPONSE_NORMALIZATION",
    lambda call: _on_images("LRN", call, size=2 * call.option(0) + 1),
)


def _dequantised(call: Call) -> Meaning:
    """Of a constant it is done once, before the first inference."""
    constant = call.operand(0).constant
    return _like("DequantizeLinear" if constant else "QuantizeLinear", call, 0)


_rule("DEQUANTIZE DENSIFY", _dequantised)


def _padding(call: Call) -> str:
    return "SAME_UPPER" if call.option(0, code="b") == _SAME else "VALID"


def _convolution(
    order: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    call: Call,
    transposed: bool = False,
) -> Meaning:
    """A convolution; options are given by the numbers of their fields, and ``order`` puts weights
    into ONNX's order. The first operand of a transposed one only says the shape."""
    data, bias = (2, 3) if transposed else (0, 2)
    shape = call.operand(data).shape
    filters = _with_order(call.operand(1), order)
    groups = (shape[-1] if shape else 0) // max(1, filters.value.shape[1])
    return _on_images(
        "ConvTranspose" if transposed else "Conv",
        call,
        filters,
        _as_is(call.optional(bias)),
        data=data,
        group=1 if transposed else max(1, groups),
        strides=[call.option(field) for field in stride],
        dilations=[call.option(field, 1) for field in dilation],
        auto_pad=_padding(call),
    )


def _with_order(weight: Value, order: tuple[int, ...]) -> Laid:
    if len(weight.shape) != len(order):
        raise ModelError(
            f"its weights have {len(weight.shape)} dimensions, not {len(order)}: the file is"
            " damaged, convert the model again"
        )
    return permuted(weight, *order)


_transposing = partial(_convolution, transposed=True)
# Weights are (out, height, width, in), of a depthwise one (1, height, width, out).
_rule("CONV_2D", partial(_convolution, (0, 3, 1, 2), (2, 1), (5, 4)))
_rule("DEPTHWISE_CONV_2D", partial(_convolution, (3, 0, 1, 2), (2, 1), (6, 5)))
_rule("TRANSPOSE_CONV", partial(_transposing, (3, 0, 1, 2), (2, 1), ()))
# Weights are (depth, height, width, in, out), of a transposed one (depth, height, width, out, in).
_rule("CONV_3D", partial(_convolution, (4, 3, 0, 1, 2), (1, 3, 2), (5, 7, 6)))
_rule("CONV_3D_TRANSPOSE", partial(_transposing, (4, 3, 0, 1, 2), (1, 3, 2), (5, 7, 6)))


def _pool(kind: str, call: Call) -> Meaning:
    return _on_images(
        kind,
        call,
        kernel_shape=[call.option(4), call.option(3)],
        strides=[call.option(2), call.option(1)],
        auto_pad=_padding(call),
    )


POOLS = {"AVERAGE_POOL_2D": "AveragePool", "MAX_POOL_2D": "MaxPool", "L2_POOL_2D": "LpPool"}
for _kind, _alike in POOLS.items():
    _rule(_kind, partial(_pool, _alike))


def _fully_connected(call: Call) -> Meaning:
    """Weights are (out, in); an operand of more dimensions is rows of as many elements as go in."""
    data, weight, result = call.operand(0), call.operand(1), call.result
    if len(weight.shape) != 2 or data.count % max(1, weight.shape[1]):
        raise ModelError(
            f"its operands of shapes {list(data.shape)} and {list(weight.shape)} do not fit: the"
            " file is damaged, convert the model again"
        )
    columns, inner = weight.shape
    rows = data.count // max(1, inner)
    flat = data.shape == (rows, inner) and result.shape == (rows, columns)
    operand = as_is(data) if flat else reshaped(data, (rows, inner))
    made = as_is(result) if flat else reshaped(result, (rows, columns))
    bias = _as_is(call.optional(2))
    return Meaning("Gemm", (operand, as_is(weight), bias), made, {"transB": 1})


def _matrix_product(call: Call) -> Meaning:
    """Either operand may be transposed."""
    operands = []
    for side in (0, 1):
        value = call.operand(side)
        rank = len(value.shape)
        swapped = rank > 1 and call.option(side, code="b")
        order = (*range(rank - 2), rank - 1, rank - 2)
        operands.append(permuted(value, *order) if swapped else as_is(value))
    return Meaning("MatMul", tuple(operands), as_is(call.result))


_rule("FULLY_CONNECTED", _fully_connected)
_rule("BATCH_MATMUL", _matrix_product)


def _reduction(kind: str, call: Call) -> Meaning:
    """Axes are the second operand."""
    axes, keeps = call.numbers(1), call.option(0, code="b")
    attributes = {} if axes is None else {"axes": axes}
    return _like(kind, call, *([0] if axes else [0, 1]), keepdims=keeps, **attributes)


def _position(call: Call) -> Meaning:
    """The axis is the second operand, and is not kept."""
    axis = call.numbers(1)
    return _like("ArgMax", call, 0, axis=axis[0], keepdims=0) if axis else _like(_REDUCES, call, 0)


_REDUCTIONS = _table(
    """
    ReduceMax REDUCE_MAX REDUCE_ANY
    ReduceMean MEAN
    ReduceMin REDUCE_MIN REDUCE_ALL
    ReduceProd REDUCE_PROD
    ReduceSum SUM
    """
)
for _kind, _alike in _REDUCTIONS.items():
    _rule(_kind, partial(_reduction, _alike))
_rule("ARG_MAX ARG_MIN", _position)


def _gather(call: Call) -> Meaning:
    """Along an axis; with dimensions of batches, each selects for itself."""
    if call.option(1):
        return _like("GatherND", call, 0, 1)
    return _like("Gather", call, 0, 1, axis=call.option(0))


def _selection(call: Call) -> Meaning:
    """A condition of one dimension chooses whole rows of the first dimension."""
    condition, result = call.operand(0), call.result
    laid = as_is(condition) if condition.shape == result.shape else Laid(condition, None)
    return Meaning("Where", (laid, *map(as_is, (call.operand(1), call.operand(2)))), as_is(result))


_rule("GATHER", _gather)
_rule("SELECT", _selection)


def _resized(field: int, centred: str, call: Call, **attributes: Any) -> Meaning:
    """Options from ``field`` on say which positions belong together: corners, or centres."""
    aligned, centres = (call.option(field + more, code="b") for more in (0, 1))
    mode = "align_corners" if aligned else centred if centres else "asymmetric"
    return _like("Resize", call, 0, coordinate_transformation_mode=mode, **attributes)


def _nearest(call: Call) -> Meaning:
    rounding = "round_prefer_ceil" if call.option(0, code="b") else "floor"
    return _resized(0, "tf_half_pixel_for_nn", call, mode="nearest", nearest_mode=rounding)


_rule("RESIZE_BILINEAR", partial(_resized, 2, "half_pixel", mode="linear"))
_rule("RESIZE_NEAREST_NEIGHBOR", _nearest)


def _transposition(call: Call) -> Meaning:
    """Where the order is not known before the first inference, nothing is known of what divides."""
    order = call.numbers(1)
    if order is None or sorted(order) != list(range(len(call.operand(0).shape))):
        return _like(_MOVES, call, 0)
    return _like("Transpose", call, 0, perm=order)


def _pad(call: Call) -> Meaning:
    """The second operand has a row for every dimension: elements before and after it."""
    pads = call.numbers(1)
    attributes: dict[str, Any] = {"mode": "reflect" if call.kind == "MIRROR_PAD" else "constant"}
    if pads is not None and len(pads) == 2 * len(call.result.shape):
        attributes["pads"] = pads[::2] + pads[1::2]
    return _like("Pad", call, 0, **attributes)


def _strided_slice(call: Call) -> Meaning:
    """Masks leave a start or an end open, and add or take away dimensions."""
    starts, steps = call.numbers(1), call.numbers(3)
    begin, _, ellipsis, added, removed = (call.option(field) for field in range(5))
    if starts is None or steps is None or any(step < 0 for step in steps):
        return _like(_MOVES, call, 0)
    plain = not (ellipsis or added or removed) and all(step == 1 for step in steps)
    return _sliced(
        call,
        [0 if begin >> axis & 1 else start for axis, start in enumerate(starts)] if plain else None,
    )


def _sliced(call: Call, starts: list[int] | None) -> Meaning:
    ranks = len(call.operand(0).shape), len(call.result.shape)
    known = starts is not None and ranks == (len(starts),) * 2
    return _like("Slice", call, 0, **({"starts": starts} if known else {}))


_rule("TRANSPOSE", _transposition)
_rule("PAD PADV2 MIRROR_PAD", _pad)
_rule("SLICE", lambda call: _sliced(call, call.numbers(1)))
_rule("STRIDED_SLICE", _strided_slice)
