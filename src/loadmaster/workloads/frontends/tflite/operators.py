"""What each operator of TensorFlow Lite is in ONNX: the kind whose rules count its work, and its
operands as that kind orders them.

Options are read by their numbers in the schema. What is not listed here is planned with its true
bytes and no arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.types import Value
from loadmaster.workloads.frontends.tflite.call import Call, Meaning
from loadmaster.workloads.frontends.tflite.layouts import (
    Laid,
    as_is,
    channels_second,
    permuted,
    reshaped,
)

_REDUCES_SOMEHOW = "TopK"
"""Counts as a reduction does, and nothing is known of what divides."""
_SAME = 0
"""``Padding``: 0 is SAME, 1 is VALID."""


_Rule = Callable[[Call], Meaning]
_RULES: dict[str, _Rule] = {}


def meaning_of(call: Call) -> Meaning | None:
    """What an operator is in ONNX; None if nothing there is like it."""
    rule = _RULES.get(call.kind)
    return rule(call) if rule else None


def _rule(*kinds: str) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def _as_is_or_absent(value: Value | None) -> Laid | None:
    return None if value is None else as_is(value)


def _named(kind: str) -> _Rule:
    """An operator with the same operands in the same order."""
    return lambda call: Meaning(
        kind, tuple(_as_is_or_absent(value) for value in call.inputs), as_is(call.result)
    )


_ALIKE = {
    "ADD": "Add",
    "ADD_N": "Sum",
    "SUB": "Sub",
    "SQUARED_DIFFERENCE": "Sub",
    "MUL": "Mul",
    "SQUARE": "Mul",
    "DIV": "Div",
    "FLOOR_DIV": "Div",
    "FLOOR_MOD": "Mod",
    "POW": "Pow",
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "ATAN2": "Div",
    "BITWISE_XOR": "BitwiseXor",
    "RIGHT_SHIFT": "BitShift",
    "EQUAL": "Equal",
    "NOT_EQUAL": "Equal",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
    "LOGICAL_NOT": "Not",
    "SELECT_V2": "Where",
    "ABS": "Abs",
    "NEG": "Neg",
    "SIGN": "Sign",
    "EXP": "Exp",
    "LOG": "Log",
    "SIN": "Sin",
    "COS": "Cos",
    "SQRT": "Sqrt",
    "RSQRT": "Sqrt",
    "CEIL": "Ceil",
    "FLOOR": "Floor",
    "ROUND": "Round",
    "RELU": "Relu",
    "RELU6": "Relu",
    "RELU_N1_TO_1": "Relu",
    "RELU_0_TO_1": "Relu",
    "PRELU": "PRelu",
    "LEAKY_RELU": "LeakyRelu",
    "ELU": "Elu",
    "GELU": "Gelu",
    "HARD_SWISH": "HardSwish",
    "LOGISTIC": "Sigmoid",
    "TANH": "Tanh",
    "CAST": "Cast",
    "BITCAST": "Cast",
    "QUANTIZE": "QuantizeLinear",
    "FAKE_QUANT": "QuantizeLinear",
    "SOFTMAX": "Softmax",
    "LOG_SOFTMAX": "LogSoftmax",
    "L2_NORMALIZATION": "LpNormalization",
    "TOPK_V2": "TopK",
    "CUMSUM": "CumSum",
    "GATHER_ND": "GatherND",
    "SCATTER_ND": "ScatterND",
    "TILE": "Tile",
    "BROADCAST_TO": "Expand",
    "REVERSE_SEQUENCE": "ReverseSequence",
    "PACK": "ReverseSequence",
    "DYNAMIC_UPDATE_SLICE": "ReverseSequence",
    "ONE_HOT": "OneHot",
    "RANGE": "Range",
    "FILL": "ConstantOfShape",
    "SHAPE": "Shape",
    "RANK": "Size",
    "VAR_HANDLE": "Shape",
    "READ_VARIABLE": "ReverseSequence",
}
"""Operators with the same operands in the same order, by the one of ONNX that does as much."""
_RULES.update({kind: _named(alike) for kind, alike in _ALIKE.items()})


@_rule("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def _view(call: Call) -> Meaning:
    return Meaning("Reshape", (as_is(call.operand(0)),), as_is(call.result))


@_rule("REVERSE_V2", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def _movement(call: Call) -> Meaning:
    """The other operands are axes and sizes."""
    return Meaning("ReverseSequence", (as_is(call.operand(0)),), as_is(call.result))


@_rule("DEQUANTIZE", "DENSIFY")
def _dequantisation(call: Call) -> Meaning:
    """Of a constant it is done once, before the first inference."""
    kind = "DequantizeLinear" if call.operand(0).constant else "QuantizeLinear"
    return Meaning(kind, (as_is(call.operand(0)),), as_is(call.result))


def _padding(call: Call, field: int = 0) -> str:
    return "SAME_UPPER" if call.option(field, code="b") == _SAME else "VALID"


def _convolution(
    call: Call, order: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Meaning:
    """A convolution; options are given by the numbers of their fields, and ``order`` puts weights
    into ONNX's order."""
    data, weight, bias = call.operand(0), call.operand(1), call.optional(2)
    filters = _with_order(weight, order)
    channels = data.shape[-1] if data.shape else 0
    attributes = {
        "group": max(1, channels // max(1, filters.value.shape[1])),
        "strides": [call.option(field) for field in stride],
        "dilations": [call.option(field, 1) for field in dilation],
        "auto_pad": _padding(call),
    }
    return Meaning(
        "Conv",
        (channels_second(data), filters, _as_is_or_absent(bias)),
        channels_second(call.result),
        attributes,
    )


def _with_order(weight: Value, order: tuple[int, ...]) -> Laid:
    if len(weight.shape) != len(order):
        raise ModelError(
            f"its weights have {len(weight.shape)} dimensions, not {len(order)}: the file is"
            " damaged, convert the model again"
        )
    return permuted(weight, *order)


@_rule("CONV_2D")
def _plain_convolution(call: Call) -> Meaning:
    """Weights are (out, height, width, in)."""
    return _convolution(call, (0, 3, 1, 2), (2, 1), (5, 4))


@_rule("DEPTHWISE_CONV_2D")
def _depthwise_convolution(call: Call) -> Meaning:
    """Weights are (1, height, width, out)."""
    return _convolution(call, (3, 0, 1, 2), (2, 1), (6, 5))


@_rule("CONV_3D")
def _deep_convolution(call: Call) -> Meaning:
    """Weights are (depth, height, width, in, out)."""
    return _convolution(call, (4, 3, 0, 1, 2), (1, 3, 2), (5, 7, 6))


@_rule("TRANSPOSE_CONV")
def _transposed_convolution(call: Call) -> Meaning:
    """Weights are (out, height, width, in)."""
    return _transposing(call, (3, 0, 1, 2), (2, 1), ())


@_rule("CONV_3D_TRANSPOSE")
def _deep_transposed_convolution(call: Call) -> Meaning:
    """Weights are (depth, height, width, out, in)."""
    return _transposing(call, (4, 3, 0, 1, 2), (1, 3, 2), (5, 7, 6))


def _transposing(
    call: Call, order: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Meaning:
    """A transposed convolution, with options and order as those of a convolution; the first operand
    only says the shape."""
    attributes: dict[str, Any] = {
        "strides": [call.option(field) for field in stride],
        "auto_pad": _padding(call),
    }
    if dilation:
        attributes["dilations"] = [call.option(field, 1) for field in dilation]
    weight, bias = _with_order(call.operand(1), order), call.optional(3)
    operands = (channels_second(call.operand(2)), weight, _as_is_or_absent(bias))
    return Meaning("ConvTranspose", operands, channels_second(call.result), attributes)


@_rule("FULLY_CONNECTED")
def _fully_connected(call: Call) -> Meaning:
    """Weights are (out, in); an operand of more dimensions is rows of as many elements as go in."""
    data, weight, bias = call.operand(0), call.operand(1), call.optional(2)
    if len(weight.shape) != 2 or data.count % max(1, weight.shape[1]):
        raise ModelError(
            f"its operands of shapes {list(data.shape)} and {list(weight.shape)} do not fit: the"
            " file is damaged, convert the model again"
        )
    rows = data.count // max(1, weight.shape[1])
    flat = (
        len(data.shape) == 2
        and data.shape[0] == rows
        and call.result.shape == (rows, weight.shape[0])
    )
    operand = as_is(data) if flat else reshaped(data, (rows, weight.shape[1]))
    result = as_is(call.result) if flat else reshaped(call.result, (rows, weight.shape[0]))
    return Meaning("Gemm", (operand, as_is(weight), _as_is_or_absent(bias)), result, {"transB": 1})


@_rule("BATCH_MATMUL")
def _matrix_product(call: Call) -> Meaning:
    """Either operand may be transposed."""
    operands = tuple(
        (
            _transposed(call.operand(side))
            if call.option(side, code="b")
            else as_is(call.operand(side))
        )
        for side in (0, 1)
    )
    return Meaning("MatMul", operands, as_is(call.result))


def _transposed(value: Value) -> Laid:
    rank = len(value.shape)
    return permuted(value, *range(rank - 2), rank - 1, rank - 2) if rank > 1 else as_is(value)


@_rule("AVERAGE_POOL_2D")
def _average_pool(call: Call) -> Meaning:
    return _pool(call, "AveragePool")


@_rule("MAX_POOL_2D")
def _largest_pool(call: Call) -> Meaning:
    return _pool(call, "MaxPool")


@_rule("L2_POOL_2D")
def _root_pool(call: Call) -> Meaning:
    return _pool(call, "LpPool")


def _pool(call: Call, kind: str) -> Meaning:
    window, strides = [call.option(4), call.option(3)], [call.option(2), call.option(1)]
    attributes = {"kernel_shape": window, "strides": strides, "auto_pad": _padding(call)}
    return Meaning(
        kind, (channels_second(call.operand(0)),), channels_second(call.result), attributes
    )


_REDUCTIONS = {
    "MEAN": "ReduceMean",
    "SUM": "ReduceSum",
    "REDUCE_PROD": "ReduceProd",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_ANY": "ReduceMax",
    "REDUCE_ALL": "ReduceMin",
}


@_rule(*_REDUCTIONS)
def _reduction(call: Call) -> Meaning:
    """Axes are the second operand."""
    axes = call.integers(1)
    attributes = {"keepdims": call.option(0, code="b")} | ({} if axes is None else {"axes": axes})
    operands = (
        (as_is(call.operand(0)),) if axes else (as_is(call.operand(0)), as_is(call.operand(1)))
    )
    return Meaning(_REDUCTIONS[call.kind], operands, as_is(call.result), attributes)


@_rule("ARG_MAX", "ARG_MIN")
def _position(call: Call) -> Meaning:
    """The axis is the second operand, and is not kept."""
    axis = call.integers(1)
    attributes = {"axis": axis[0], "keepdims": 0} if axis else {}
    kind = "ArgMax" if axis else _REDUCES_SOMEHOW
    return Meaning(kind, (as_is(call.operand(0)),), as_is(call.result), attributes)


@_rule("GATHER")
def _gather(call: Call) -> Meaning:
    """Along an axis; with dimensions of batches, each selects for itself."""
    batched = call.option(1) != 0
    return Meaning(
        "GatherND" if batched else "Gather",
        (as_is(call.operand(0)), as_is(call.operand(1))),
        as_is(call.result),
        {} if batched else {"axis": call.option(0)},
    )


@_rule("RESIZE_BILINEAR")
def _interpolation(call: Call) -> Meaning:
    return _resized(call, 2, {"mode": "linear"}, "half_pixel")


@_rule("RESIZE_NEAREST_NEIGHBOR")
def _nearest(call: Call) -> Meaning:
    rounding = "round_prefer_ceil" if call.option(0, code="b") else "floor"
    return _resized(call, 0, {"mode": "nearest", "nearest_mode": rounding}, "tf_half_pixel_for_nn")


def _resized(call: Call, field: int, attributes: dict[str, Any], centred: str) -> Meaning:
    """Options from ``field`` on say which positions belong together: corners, or centres."""
    aligned, centres = (call.option(field + more, code="b") for more in (0, 1))
    mode = "align_corners" if aligned else centred if centres else "asymmetric"
    return Meaning(
        "Resize",
        (as_is(call.operand(0)),),
        as_is(call.result),
        attributes | {"coordinate_transformation_mode": mode},
    )


@_rule("SELECT")
def _selection(call: Call) -> Meaning:
    """A condition of one dimension chooses whole rows of the first dimension."""
    condition, result = call.operand(0), call.result
    laid = as_is(condition) if condition.shape == result.shape else Laid(condition, None)
    return Meaning("Where", (laid, *map(as_is, (call.operand(1), call.operand(2)))), as_is(result))


@_rule("LOCAL_RESPONSE_NORMALIZATION")
def _local_response(call: Call) -> Meaning:
    """Over the channels up to a radius on either side."""
    return Meaning(
        "LRN",
        (channels_second(call.operand(0)),),
        channels_second(call.result),
        {"size": 2 * call.option(0) + 1},
    )


@_rule("CONCATENATION")
def _concatenation(call: Call) -> Meaning:
    operands = tuple(as_is(value) for value in call.inputs if value)
    return Meaning("Concat", operands, as_is(call.result), {"axis": call.option(0)})


@_rule("TRANSPOSE")
def _transposition(call: Call) -> Meaning:
    """Where the order is not known before the first inference, nothing is known of what divides."""
    order = call.integers(1)
    rank = len(call.operand(0).shape)
    if order is None or sorted(order) != list(range(rank)):
        return Meaning("ReverseSequence", (as_is(call.operand(0)),), as_is(call.result))
    return Meaning("Transpose", (as_is(call.operand(0)),), as_is(call.result), {"perm": order})


@_rule("PAD", "PADV2", "MIRROR_PAD")
def _pad(call: Call) -> Meaning:
    """The second operand has a row for every dimension: elements before and after it."""
    pads = call.integers(1)
    attributes: dict[str, Any] = {"mode": "reflect" if call.kind == "MIRROR_PAD" else "constant"}
    if pads is not None and len(pads) == 2 * len(call.result.shape):
        attributes["pads"] = pads[::2] + pads[1::2]
    return Meaning("Pad", (as_is(call.operand(0)),), as_is(call.result), attributes)


@_rule("SLICE")
def _slice(call: Call) -> Meaning:
    return _sliced(call, call.integers(1))


@_rule("STRIDED_SLICE")
def _strided_slice(call: Call) -> Meaning:
    """Masks leave a start or an end open, and add or take away dimensions."""
    starts, steps = call.integers(1), call.integers(3)
    begin, _, ellipsis, added, removed = (call.option(field) for field in range(5))
    if starts is None or steps is None or any(step < 0 for step in steps):
        return Meaning("ReverseSequence", (as_is(call.operand(0)),), as_is(call.result))
    plain = not (ellipsis or added or removed) and all(step == 1 for step in steps)
    return _sliced(
        call,
        [0 if begin >> axis & 1 else start for axis, start in enumerate(starts)] if plain else None,
    )


def _sliced(call: Call, starts: list[int] | None) -> Meaning:
    data = call.operand(0)
    known = starts is not None and len(starts) == len(data.shape) == len(call.result.shape)
    attributes = {"starts": starts} if known else {}
    return Meaning("Slice", (as_is(data),), as_is(call.result), attributes)


@_rule("SPLIT")
def _split(call: Call) -> Meaning:
    return Meaning("Split", (as_is(call.operand(1)),), as_is(call.result))


@_rule("SPLIT_V", "UNPACK")
def _split_by_sizes(call: Call) -> Meaning:
    return Meaning("Split", (as_is(call.operand(0)),), as_is(call.result))


@_rule("EMBEDDING_LOOKUP")
def _embedding(call: Call) -> Meaning:
    return Meaning("Gather", (as_is(call.operand(1)), as_is(call.operand(0))), as_is(call.result))


@_rule("DEPTH_TO_SPACE")
def _depth_to_space(call: Call) -> Meaning:
    return Meaning(
        "DepthToSpace",
        (channels_second(call.operand(0)),),
        channels_second(call.result),
        {"blocksize": call.option(0)},
    )


@_rule("SPACE_TO_DEPTH")
def _space_to_depth(call: Call) -> Meaning:
    return Meaning(
        "SpaceToDepth",
        (channels_second(call.operand(0)),),
        channels_second(call.result),
        {"blocksize": call.option(0)},
    )


@_rule("ZEROS_LIKE")
def _zeros(call: Call) -> Meaning:
    return Meaning("ConstantOfShape", (), as_is(call.result))
