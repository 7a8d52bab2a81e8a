"""What each operator of TensorFlow Lite is in ONNX: the kind whose rule says its work and how it
divides, and its operands as that kind orders them.

TensorFlow Lite puts channels last, and the input channels of weights too. The rules of the ONNX
frontend want them second. An operand is handed to a rule with its dimensions permuted; the windows
that the rule finds are permuted back. Options are read by their numbers in the schema. What is not
listed here is planned with its true bytes and no arithmetic, but for recurrent operators, which are
like none of ONNX: they have a matrix for every gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.rules import (
    GATE_STEPS,
    WHOLE,
    Division,
    Node,
    Value,
    Work,
    product,
)
from loadmaster.workloads.frontends.tflite.flatbuffer import FlatTable
from loadmaster.workloads.graph import LoopNest


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCall(Node):
    """One operator of a file with its operands, and its options by number of their field."""

    cure = "convert the model again"
    options: FlatTable | None = None

    def option(self, field: int, default: int = 0, code: str = "i") -> int:
        """Return a number of the options."""
        return self.options.number(field, code, default) if self.options else default


def permuted(value: Value, *order: int) -> Value:
    """Return an operand with permuted dimensions: dimension ``i`` is dimension ``order[i]`` of the
    file's. Raise ModelError for another number of dimensions."""
    if len(value.shape) != len(order):
        raise ModelError(
            f"tensor {value.name!r} has {len(value.shape)} dimensions, not {len(order)}: the file"
            " is damaged, convert the model again"
        )
    return replace(value, shape=tuple(value.shape[axis] for axis in order), order=order)


def in_file_order(found: Division, node: Node) -> Division:
    """Return a division with dimensions as the file orders them; operands whose order is unknown
    (empty) have no windows."""
    order = _order(node.result)
    if not order or found is WHOLE:
        return WHOLE
    windows = {}
    for index, own in found.operands.items():
        operand = node.operand(index)
        if own and operand.order != ():
            placed = {
                axis: replace(window, axis=order[window.axis]) if window.axis >= 0 else window
                for axis, window in zip(_order(operand), own, strict=True)
            }
            windows[index] = tuple(placed[axis] for axis in sorted(placed))
    loops = tuple(loop for _, loop in sorted(zip(order, found.loops, strict=False)))
    steps = {order[axis]: step for axis, step in found.steps.items()}
    copies = found.copies and len(windows) == len(found.operands)
    return Division(
        tuple(sorted(order[axis] for axis in found.axes)), windows, loops, steps, copies
    )


def _order(value: Value) -> tuple[int, ...]:
    """Return the file's dimension for each dimension of a value."""
    return tuple(range(len(value.shape))) if value.order is None else value.order


_MOVES = "ReverseSequence"
"""Copies, and nothing is known of what divides."""
_REDUCES = "TopK"
"""Counts as a reduction does, and nothing is known of what divides."""
_SAME = 0
"""``Padding``: 0 is SAME, 1 is VALID."""

_Rule = Callable[[OperatorCall], OperatorCall]
_RULES: dict[str, _Rule] = {}


def meaning_of(call: OperatorCall) -> OperatorCall | None:
    """Return the ONNX operator that an operator is like; None if there is none."""
    rule = _RULES.get(call.kind)
    return rule(call) if rule else None


def _rule(kinds: str, rule: _Rule) -> None:
    """Register a rule for kinds of operators."""
    _RULES.update(dict.fromkeys(kinds.split(), rule))


def _table(text: str) -> dict[str, str]:
    """Return the ONNX operator by name; each line has an ONNX operator, then those that are like
    it."""
    lines = (line.split() for line in text.strip().splitlines())
    return {kind: alike for alike, *kinds in lines for kind in kinds}


def _like(kind: str, call: OperatorCall, *operands: int, **attributes: Any) -> OperatorCall:
    """Return the ONNX operator with these operands, or all, as the file orders their dimensions."""
    values = [call.operand(index) for index in operands] or call.inputs
    return call.like(kind, values, **attributes)


def _on_images(
    kind: str,
    call: OperatorCall,
    *others: Value | None,
    data: int = 0,
    rank: int = 4,
    **options: Any,
) -> OperatorCall:
    """Return the ONNX operator whose first operand, at position ``data``, and result have ``rank``
    dimensions, in the file channels last."""
    order = (0, rank - 1, *range(1, rank - 1))
    image, result = (permuted(value, *order) for value in (call.operand(data), call.result))
    if 0 in (*options.get("strides", ()), options.get("blocksize")):
        raise ModelError(
            "its strides or blocks are of 0 elements: the file is damaged, convert the model again"
        )
    return call.like(kind, (image, *others), result, **options)


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
    ConstantOfShape FILL
    CumSum CUMSUM
    Expand BROADCAST_TO
    GatherND GATHER_ND
    LogSoftmax LOG_SOFTMAX
    LpNormalization L2_NORMALIZATION
    OneHot ONE_HOT
    Range RANGE
    Reshape RESHAPE SQUEEZE EXPAND_DIMS
    ScatterND SCATTER_ND
    Shape SHAPE VAR_HANDLE
    Size RANK
    Softmax SOFTMAX
    Split SPLIT_V UNPACK
    Tile TILE
    {_REDUCES} TOPK_V2
    {_MOVES} REVERSE_SEQUENCE PACK DYNAMIC_UPDATE_SLICE READ_VARIABLE ASSIGN_VARIABLE
    """
)
"""All operators with the same operands in the same order."""
_RULES |= {kind: partial(_like, alike) for kind, alike in _ALIKE.items()}

_rule(
    "BITCAST",
    lambda call: _like("Cast" if call.operand(0).shape == call.result.shape else _MOVES, call, 0),
)
# The other operands are axes and sizes.
_rule("REVERSE_V2 SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND", lambda call: _like(_MOVES, call, 0))
_rule("SPLIT", lambda call: _like("Split", call, 1))
_rule("EMBEDDING_LOOKUP", lambda call: _like("Gather", call, 1, 0))
_rule("CONCATENATION", lambda call: _like("Concat", call, axis=call.option(0)))
_rule("ZEROS_LIKE", lambda call: call.like("ConstantOfShape", ()))
_rule("DEPTH_TO_SPACE", lambda call: _on_images("DepthToSpace", call, blocksize=call.option(0)))
_rule("SPACE_TO_DEPTH", lambda call: _on_images("SpaceToDepth", call, blocksize=call.option(0)))
# Over the channels up to a radius on either side.
_rule(
    "LOCAL_RESPONSE_NORMALIZATION",
    lambda call: _on_images("LRN", call, size=2 * call.option(0) + 1),
)


def _dequantise(call: OperatorCall) -> OperatorCall:
    """Return DequantizeLinear; a constant is dequantised once, before the first inference."""
    constant = call.operand(0).constant
    return _like("DequantizeLinear" if constant else "QuantizeLinear", call, 0)


_rule("DEQUANTIZE DENSIFY", _dequantise)


def _padding(call: OperatorCall) -> str:
    """Return the ONNX name of an operator's padding."""
    return "SAME_UPPER" if call.option(0, code="b") == _SAME else "VALID"


def _convolution(
    order: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    call: OperatorCall,
    transposed: bool = False,
) -> OperatorCall:
    """Return a convolution. Options are given by the numbers of their fields, and ``order`` puts
    weights into ONNX's order. The first operand of a transposed convolution only gives the
    shape."""
    data = 2 if transposed else 0
    bias = call.optional(3 if transposed else 2)
    if bias and len(bias.shape) != 1:
        bias = replace(bias, order=())
    shape = call.operand(data).shape
    filters = permuted(call.operand(1), *order)
    groups = (shape[-1] if shape else 0) // max(1, filters.shape[1])
    return _on_images(
        "ConvTranspose" if transposed else "Conv",
        call,
        filters,
        bias,
        data=data,
        rank=len(order),
        group=1 if transposed else max(1, groups),
        strides=[call.option(field) for field in stride],
        dilations=[call.option(field, 1) for field in dilation],
        auto_pad=_padding(call),
    )


_transposing = partial(_convolution, transposed=True)
# Weights are (out, height, width, in), of a depthwise one (1, height, width, out).
_rule("CONV_2D", partial(_convolution, (0, 3, 1, 2), (2, 1), (5, 4)))
_rule("DEPTHWISE_CONV_2D", partial(_convolution, (3, 0, 1, 2), (2, 1), (6, 5)))
_rule("TRANSPOSE_CONV", partial(_transposing, (3, 0, 1, 2), (2, 1), ()))
# Weights are (depth, height, width, in, out), of a transposed one (depth, height, width, out, in).
_rule("CONV_3D", partial(_convolution, (4, 3, 0, 1, 2), (1, 3, 2), (5, 7, 6)))
_rule("CONV_3D_TRANSPOSE", partial(_transposing, (4, 3, 0, 1, 2), (1, 3, 2), (5, 7, 6)))


def _pool(kind: str, call: OperatorCall) -> OperatorCall:
    """Return the ONNX pool that an operator is like."""
    return _on_images(
        kind,
        call,
        kernel_shape=[call.option(4), call.option(3)],
        strides=[call.option(2), call.option(1)],
        auto_pad=_padding(call),
    )


POOLS = {"AVERAGE_POOL_2D": "AveragePool", "MAX_POOL_2D": "MaxPool", "L2_POOL_2D": "LpPool"}
_RULES |= {kind: partial(_pool, alike) for kind, alike in POOLS.items()}


def _fully_connected(call: OperatorCall) -> OperatorCall:
    """Return a matrix product with weights (out, in); an operand of more dimensions is rows of
    ``in`` elements."""
    data, weight, result = call.operand(0), call.operand(1), call.result
    if len(weight.shape) != 2 or data.count % max(1, weight.shape[1]):
        raise ModelError(
            f"its operands of shapes {list(data.shape)} and {list(weight.shape)} do not fit: the"
            " file is damaged, convert the model again"
        )
    columns, inner = weight.shape
    rows = data.count // max(1, inner)
    if data.shape[-1:] != (inner,) or result.shape != (*data.shape[:-1], columns):
        data = replace(data, shape=(rows, inner), order=())
        if result.shape != (rows, columns):
            result = replace(result, shape=(rows, columns), order=())
    return call.like("Gemm", (data, weight, call.optional(2)), result, transB=1)


def _matrix_product(call: OperatorCall) -> OperatorCall:
    """Return a matrix product, either operand of which may be transposed."""
    operands = []
    for side in (0, 1):
        value = call.operand(side)
        rank = len(value.shape)
        swapped = rank > 1 and call.option(side, code="b")
        order = (*range(rank - 2), rank - 1, rank - 2)
        operands.append(permuted(value, *order) if swapped else value)
    return call.like("MatMul", operands)


_rule("FULLY_CONNECTED", _fully_connected)
_rule("BATCH_MATMUL", _matrix_product)


def _reduction(kind: str, call: OperatorCall) -> OperatorCall:
    """Return a reduction, whose axes are the second operand."""
    axes, keeps = call.integers("axes", 1), call.option(0, code="b")
    attributes = {} if axes is None else {"axes": axes}
    return _like(kind, call, *([0] if axes else [0, 1]), keepdims=keeps, **attributes)


def _position(call: OperatorCall) -> OperatorCall:
    """Return ArgMax or ArgMin; the axis is the second operand, and is not kept."""
    axis = call.integers("axis", 1)
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
_RULES |= {kind: partial(_reduction, alike) for kind, alike in _REDUCTIONS.items()}
_rule("ARG_MAX ARG_MIN", _position)


def _gather(call: OperatorCall) -> OperatorCall:
    """Return Gather along an axis; with batch dimensions, each batch selects for itself."""
    if call.option(1):
        return _like("GatherND", call, 0, 1)
    return _like("Gather", call, 0, 1, axis=call.option(0))


def _selection(call: OperatorCall) -> OperatorCall:
    """Return Where; a condition of one dimension chooses whole rows of the first dimension."""
    condition, result = call.operand(0), call.result
    if condition.shape != result.shape:
        condition = replace(condition, order=())
    return call.like("Where", (condition, call.operand(1), call.operand(2)))


_rule("GATHER", _gather)
_rule("SELECT", _selection)


def _resize(field: int, centred: str, call: OperatorCall, **attributes: Any) -> OperatorCall:
    """Return Resize; the options from ``field`` on say whether corners or centres are aligned."""
    aligned, centres = (call.option(field + more, code="b") for more in (0, 1))
    mode = "align_corners" if aligned else centred if centres else "asymmetric"
    return _like("Resize", call, 0, coordinate_transformation_mode=mode, **attributes)


def _nearest(call: OperatorCall) -> OperatorCall:
    """Return the ONNX Resize to nearest neighbours that an operator is like."""
    rounding = "round_prefer_ceil" if call.option(0, code="b") else "floor"
    return _resize(0, "tf_half_pixel_for_nn", call, mode="nearest", nearest_mode=rounding)


def _bilinear(call: OperatorCall) -> OperatorCall:
    """Return the ONNX Resize between neighbours that an operator is like."""
    fixed = call.operand(0).dtype in ("int8", "int16")
    return _resize(2, "half_pixel", call, mode="linear", fixed_point=fixed)


_rule("RESIZE_BILINEAR", _bilinear)
_rule("RESIZE_NEAREST_NEIGHBOR", _nearest)


def _transposition(call: OperatorCall) -> OperatorCall:
    """Return Transpose; it does not divide if the order is unknown before the first inference."""
    order = call.integers("perm", 1)
    if order is None or sorted(order) != list(range(len(call.operand(0).shape))):
        return _like(_MOVES, call, 0)
    return _like("Transpose", call, 0, perm=order)


def _pad(call: OperatorCall) -> OperatorCall:
    """Return Pad; the second operand has a row for every dimension: elements before and after
    it."""
    pads = call.integers("pads", 1)
    attributes: dict[str, Any] = {"mode": "reflect" if call.kind == "MIRROR_PAD" else "constant"}
    if pads is not None and len(pads) == 2 * call.rank:
        attributes["pads"] = pads[::2] + pads[1::2]
    return _like("Pad", call, 0, **attributes)


def _strided_slice(call: OperatorCall) -> OperatorCall:
    """Return Slice; masks leave a start or an end open, and add or remove dimensions."""
    starts, steps = call.integers("starts", 1), call.integers("steps", 3)
    begin, _, *others = map(call.option, range(5))
    if starts is None or steps is None or any(step < 0 for step in steps):
        return _like(_MOVES, call, 0)
    masked = [0 if begin >> axis & 1 else start for axis, start in enumerate(starts)]
    return _slice_from(call, None if any(others) else masked, steps=steps)


def _slice_from(call: OperatorCall, starts: list[int] | None, **more: Any) -> OperatorCall:
    """Return the ONNX Slice that an operator is like; ``starts`` are unknown if None."""
    known = starts is not None and len(call.operand(0).shape) == call.rank >= len(starts)
    return _like("Slice", call, 0, **({"starts": starts, **more} if known else {}))


_rule("TRANSPOSE", _transposition)
_rule("PAD PADV2 MIRROR_PAD", _pad)
_rule("SLICE", lambda call: _slice_from(call, call.integers("starts", 1)))
_rule("STRIDED_SLICE", _strided_slice)


_BASIC_CELL = 5
"""Operands of the older kernel of LSTM, which has one matrix for all gates and for input and state
together."""


def recurrent_work(call: OperatorCall) -> Work | None:
    """Return the work of a recurrent operator; None for other operators."""
    if call.kind == "SVDF":
        return _singular_value(call)
    if call.kind not in _CELLS:
        return None
    if call.kind == "LSTM" and len(call.inputs) == _BASIC_CELL:
        return _cell(call, (), (2,), False)
    *positions, field = _CELLS[call.kind]
    whole, stepwise = map(_numbers, positions)
    time_major = field != "-" and bool(call.option(int(field), code="b"))
    return _cell(call, whole, stepwise, time_major)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers that a text lists, as in ``"1-4,16"``."""
    spans = (part.split("-") for part in text.split(","))
    return tuple(number for span in spans for number in range(int(span[0]), int(span[-1]) + 1))


def _cell(
    call: OperatorCall, whole: tuple[int, ...], stepwise: tuple[int, ...], time_major: bool
) -> Work:
    """Return the work of a recurrent cell: products of the input with the matrices ``whole``, and
    of the state with the matrices ``stepwise``; operands by position."""
    shape = call.operand(0).shape
    # With two dimensions it is one step.
    steps, batch = 1, math.prod(shape[:-1])
    if len(shape) > 2:
        steps, batch = shape[:2] if time_major else shape[1::-1]
    nests, elements = [], 0
    for index in (*whole, *stepwise):
        if (weight := call.optional(index)) is None:
            continue
        rows, width = call.shape(index)
        nest = LoopNest(k=rows, c=width, y=batch, weight=weight.name)
        if index in whole:
            nests.append(replace(nest, y=steps * batch, input=call.operand(0).name))
            elements += GATE_STEPS * rows * steps * batch
        else:
            nests.append(replace(nest, repeats=steps, output=call.result.name))
    return product(*nests, elements=elements)


def _singular_value(call: OperatorCall) -> Work:
    """Return the work of SVDF: a product with the features, then a filter over time for each of
    them (Nakkiran and others, Interspeech 2015)."""
    features, width = call.shape(1)
    _, memory = call.shape(2)
    batch = call.operand(0).count // max(1, width)
    first = LoopNest(
        k=features, c=width, y=batch, input=call.operand(0).name, weight=call.operand(1).name
    )
    second = LoopNest(
        k=1,
        c=memory,
        y=batch,
        groups=features,
        weight=call.operand(2).name,
        output=call.result.name,
    )
    return product(first, second)


_CELLS_TEXT = """
    LSTM 1-4 5-8,16 -
    UNIDIRECTIONAL_SEQUENCE_LSTM 1-4 5-8,16 3
    BIDIRECTIONAL_SEQUENCE_LSTM 1-4,18-21,40-47 5-8,16,22-25,33 4
    RNN 1 2 -
    UNIDIRECTIONAL_SEQUENCE_RNN 1 2 0
    BIDIRECTIONAL_SEQUENCE_RNN 1,5,10,11 2,6 0
"""
_CELLS = {kind: own for kind, *own in map(str.split, _CELLS_TEXT.strip().splitlines())}
"""The matrices of the input and those of the state by position, and the option that says whether
steps come first."""
