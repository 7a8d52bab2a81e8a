"""How convolutions and pooling divide."""

from __future__ import annotations

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.division.table import (
    WHOLE,
    Division,
    Windows,
    aligned,
    division_rule,
)
from loadmaster.workloads.frontends.onnx.types import Node, Shape
from loadmaster.workloads.window import ALL, SUMMED, Window


def _spatial(node: Node, taps: Shape, data: Shape, positions: Shape) -> list[Window] | None:
    """Windows of the spatial dimensions of a convolution or pooling; None where padding cannot be
    told."""
    rank = len(taps)
    strides = node.integers("strides") or [1] * rank
    dilations = node.integers("dilations") or [1] * rank
    pads = _begin_pads(node, taps, data, positions, strides, dilations)
    if pads is None or not len(strides) == len(dilations) == len(pads) == rank:
        return None
    return [
        Window(
            2 + axis, strides[axis], 1, -pads[axis], (taps[axis] - 1) * dilations[axis] - pads[axis]
        )
        for axis in range(rank)
    ]


def _begin_pads(
    node: Node, taps: Shape, data: Shape, positions: Shape, strides: list[int], dilations: list[int]
) -> list[int] | None:
    """Padding before the first element of every spatial dimension."""
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return (node.integers("pads") or [0] * len(taps))[: len(taps)]
    if mode == "VALID":
        return [0] * len(taps)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    sizes = zip(taps, data[2:], positions, strides, dilations, strict=True)
    totals = [
        max(0, (count - 1) * stride + (tap - 1) * dilation + 1 - size)
        for tap, size, count, stride, dilation in sizes
    ]
    return [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]


def _convolution(node: Node, data: int, weight: int, bias: int, channels: Window = ALL) -> Division:
    """``channels`` is the window of the input channels of one that is not grouped."""
    filters, result = node.shape(weight), node.result.shape
    groups = node.attrs.get("group", 1)
    spatial = _spatial(node, filters[2:], node.shape(data), result[2:])
    if spatial is None or len(result) != len(filters):
        return WHOLE
    inputs = Window(1, 1, filters[0] // groups, unit=filters[1]) if groups > 1 else channels
    operands: dict[int, Windows] = {
        data: (Window(0), inputs, *spatial),
        weight: (Window(1), ALL if groups > 1 else channels, *(ALL for _ in filters[2:])),
    }
    if node.optional(bias):
        operands[bias] = (Window(1),)
    loops = ("batch", "channels", *("y" for _ in result[3:]), "x")
    return Division(tuple(range(len(result))), operands, loops)


@division_rule("Conv")
def _plain_convolution(node: Node) -> Division:
    return _convolution(node, 0, 1, 2, SUMMED)


@division_rule("ConvInteger")
def _integer_convolution(node: Node) -> Division:
    """The zero point of weights may be one for each channel, as a bias is."""
    return _convolution(node, 0, 1, 3)


@division_rule("FusedConv")
def _fused_convolution(node: Node) -> Division:
    found = _convolution(node, 0, 1, 2)
    if node.optional(3):
        found.operands[3] = aligned(node.shape(3), node.result.shape)
    return found


@division_rule("QLinearConv")
def _quantised_convolution(node: Node) -> Division:
    return _convolution(node, 0, 3, 8)


@division_rule("ConvTranspose")
def _transposed_convolution(node: Node) -> Division:
    """Its loops run over input pixels: a row of the result meets those whose taps reach it, and as
    large a share of the work as it is."""
    filters, data, result = node.shape(1), node.shape(0), node.result.shape
    groups, rank = node.attrs.get("group", 1), len(filters) - 2
    strides = node.integers("strides") or [1] * rank
    dilations = node.integers("dilations") or [1] * rank
    more = node.integers("output_padding") or [0] * rank
    if len(more) != rank:
        raise ModelError(
            f"its output_padding {more} is not of its {rank} dimensions: the file is damaged,"
            " export it again"
        )
    pads = _transposed_pads(node, filters[2:], data[2:], result[2:], strides, dilations)
    if not len(strides) == len(dilations) == len(pads) == rank:
        return WHOLE
    spatial = [
        _reached(2 + axis, strides[axis], (filters[2 + axis] - 1) * dilations[axis], pads[axis])
        for axis in range(rank)
    ]
    inputs = Window(1, 1, filters[1], unit=filters[0] // groups) if groups > 1 else ALL
    free = [ALL for _ in filters[2:]]
    outputs = ALL if groups > 1 else Window(1)
    operands: dict[int, Windows] = {0: (Window(0), inputs, *spatial), 1: (inputs, outputs, *free)}
    if node.optional(2):
        operands[2] = (Window(1),)
    # A piece has a row of input to itself at least.
    steps = {axis: -(-result[axis] // data[axis]) for axis in range(2, len(result))}
    return Division(
        tuple(range(len(result))),
        operands,
        ("batch", "channels", *("" for _ in result[4:]), *("y" for _ in result[3:4]), "x"),
        steps,
    )


def _reached(axis: int, stride: int, reach: int, pad: int) -> Window:
    """Input positions of which some tap of a transposed convolution reaches a range of output
    positions."""
    return Window(axis, 1, stride, min(pad - reach + stride - 1, pad), pad)


def _transposed_pads(
    node: Node, taps: Shape, data: Shape, positions: Shape, strides: list[int], dilations: list[int]
) -> list[int]:
    """What is cut off before the first output of every spatial dimension."""
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0] * len(taps)
    if mode in ("NOTSET", "") and not node.integers("output_shape"):
        return (node.integers("pads") or [0] * len(taps))[: len(taps)]
    more = node.integers("output_padding") or [0] * len(taps)
    sizes = zip(taps, data, positions, strides, dilations, more, strict=True)
    totals = [
        max(0, (size - 1) * stride + extra + (tap - 1) * dilation + 1 - count)
        for tap, size, count, stride, dilation, extra in sizes
    ]
    return [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]


@division_rule("MaxPool", "AveragePool", "LpPool")
def _pooling(node: Node) -> Division:
    result = node.result.shape
    spatial = _spatial(node, tuple(node.integers("kernel_shape") or ()), node.shape(0), result[2:])
    if spatial is None or len(spatial) != len(result) - 2:
        return WHOLE
    return Division(tuple(range(len(result))), {0: (Window(0), Window(1), *spatial)})


@division_rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "InstanceNormalization")
def _by_plane(node: Node) -> Division:
    rank = len(node.shape(0))
    operands: dict[int, Windows] = {0: (Window(0), Window(1), *(ALL for _ in range(rank - 2)))}
    operands |= {i: (Window(1),) for i in range(1, len(node.inputs))}
    return Division((0, 1), operands)
