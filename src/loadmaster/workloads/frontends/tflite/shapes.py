"""Shapes of results that a converter left open: from the operands where the operator says how, else
an error that names the tensor.

The format writes an open shape as that of a scalar.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.types import Shape, Value, broadcast_shapes
from loadmaster.workloads.frontends.tflite.call import Call


def _kinds(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BROADCAST = _kinds(
    """
    ADD ADD_N SUB SQUARED_DIFFERENCE MUL SQUARE DIV FLOOR_DIV FLOOR_MOD POW MAXIMUM MINIMUM ATAN2
    BITWISE_XOR RIGHT_SHIFT EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND
    LOGICAL_OR LOGICAL_NOT SELECT_V2 ABS NEG SIGN EXP LOG SIN COS SQRT RSQRT CEIL FLOOR ROUND RELU
    RELU6 RELU_N1_TO_1 RELU_0_TO_1 PRELU LEAKY_RELU ELU GELU HARD_SWISH LOGISTIC TANH CAST QUANTIZE
    DEQUANTIZE FAKE_QUANT
    """
)
_LIKE_FIRST = _kinds(
    """
    SOFTMAX LOG_SOFTMAX L2_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION CUMSUM REVERSE_SEQUENCE
    REVERSE_V2 DYNAMIC_UPDATE_SLICE ZEROS_LIKE
    """
)
_POOLS = frozenset({"AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"})
_NEVER_SCALAR = _kinds(
    """
    CONV_3D TRANSPOSE_CONV CONV_3D_TRANSPOSE FULLY_CONNECTED BATCH_MATMUL CONCATENATION PACK PAD
    PADV2 MIRROR_PAD RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR TRANSPOSE TILE SPACE_TO_DEPTH
    DEPTH_TO_SPACE SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND EXPAND_DIMS TOPK_V2 ONE_HOT RANGE SHAPE SLICE
    SPLIT SPLIT_V SELECT EMBEDDING_LOOKUP LSTM RNN SVDF UNIDIRECTIONAL_SEQUENCE_LSTM
    UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_RNN
    """
)
"""Operators without a scalar among their results."""
_OF_IMAGES = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", *_POOLS})


def completed(call: Call) -> Call:
    """A call whose results have shapes. Raises `ModelError` naming a tensor whose shape is not to
    be known."""
    if call.kind in _OF_IMAGES:
        _require_shape(call.operand(0))
    if not call.outputs or call.result.shape:
        return call
    shape = _shape(call)
    result = replace(call.result, shape=shape)
    if call.kind in _OF_IMAGES or call.kind in _NEVER_SCALAR:
        _require_shape(result)
    return replace(call, outputs=(result, *call.outputs[1:]))


def _require_shape(value: Value) -> None:
    if not value.shape:
        raise ModelError(
            f"the shape of tensor {value.name!r} is not in the file: convert the model with fixed"
            " shapes"
        )


def _shape(call: Call) -> Shape:
    given = [value.shape for value in call.inputs if value]
    if call.kind in _BROADCAST:
        return broadcast_shapes(*given)
    if call.kind in _LIKE_FIRST:
        return call.operand(0).shape
    if call.kind in _OF_IMAGES:
        return _windows_of(call)
    return ()


def _windows_of(call: Call) -> Shape:
    """A result of a convolution or pooling: options are padding, strides of width and height, and
    for pooling the window's width and height, for convolutions dilations."""
    batch, *sizes, channels = call.operand(0).shape
    if call.kind in _POOLS:
        taps, dilations = [call.option(4), call.option(3)], [1, 1]
    else:
        first = 4 if call.kind == "CONV_2D" else 5
        weight = call.operand(1).shape
        taps, dilations = list(weight[1:3]), [call.option(first + more, 1) for more in (1, 0)]
        channels = weight[0] if call.kind == "CONV_2D" else weight[3]
    strides = [max(1, call.option(field)) for field in (2, 1)]
    reach = (
        [0, 0]
        if not call.option(0, code="b")
        else [(tap - 1) * dilation for tap, dilation in zip(taps, dilations, strict=True)]
    )
    positions = [
        -(-(size - more) // stride)
        for size, more, stride in zip(sizes, reach, strides, strict=True)
    ]
    return (batch, *positions, channels)
