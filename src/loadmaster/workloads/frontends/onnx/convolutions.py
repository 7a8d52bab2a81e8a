"""Convolutions and pooling: a window of taps that passes over the spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.rules import (
    NCHWC,
    WHOLE,
    Division,
    Windows,
    aligned,
    divided,
    rule,
    variant,
)
from loadmaster.workloads.frontends.onnx.types import Node, Shape, Work, named, product
from loadmaster.workloads.graph import LoopNest, OpClass
from loadmaster.workloads.window import ALL, SUMMED, Window, identity


def _folded(sizes: Sequence[int]) -> tuple[int, int]:
    """Fold any number of spatial dimensions to rows and columns: depth folds into the rows, one
    dimension is a single row."""
    return math.prod(sizes[:-1]), sizes[-1]


def _pair(values: list[int] | None) -> tuple[int, int]:
    """Stride or dilation of the two innermost dimensions."""
    pair = (1, 1, *(values or ()))[-2:]
    return pair[0], pair[1]


def convolution_nest(node: Node, weight: int = 1, transposed: bool = False) -> LoopNest:
    """Make the loop nest of a convolution whose weight is laid out (K, C / groups, taps...).

    The weight of a transposed one is (C, K / groups, taps...), and each input pixel meets every tap
    once. In blocks of channels, the weight alone tells how many there are: the operand may be
    padded to whole blocks.
    """
    data, filters = node.shape(0), node.shape(weight)
    groups = node.attrs.get("group", 1)
    channels = filters[0] if transposed else filters[1] * groups
    fits = node.domain == NCHWC or data[1] == channels
    if groups < 1 or not fits or filters[0] % groups:
        raise ModelError(
            f"its input of {data[1]} channels, weights of shape {list(filters)} and {groups} groups"
            " do not fit together: the file is damaged, export it again"
        )
    far, near = filters[0] // groups, filters[1]
    positions = data if transposed else node.result.shape
    (y, x), (r, s) = _folded(positions[2:]), _folded(filters[2:])
    nest = LoopNest(
        k=near if transposed else far,
        c=far if transposed else near,
        y=y,
        x=x,
        r=r,
        s=s,
        groups=groups,
        batch=data[0],
        stride=(1, 1) if transposed else _pair(node.integers("strides")),
        dilation=_pair(node.integers("dilations")),
    )
    return named(node, nest, weight)


def _convolution(node: Node, weight: int = 1, transposed: bool = False) -> Work:
    return product(convolution_nest(node, weight, transposed))


def _numbers(node: Node, name: str, default: int, rank: int) -> list[int]:
    """One number for each spatial dimension."""
    return node.integers(name) or [default] * rank


def _pads_before(node: Node, taps: Shape, small: Shape, large: Shape) -> list[int]:
    """Padding before the first element of every spatial dimension; none where it cannot be told.

    ``small`` are the positions of the window, and ``large`` the elements that it passes over.
    """
    mode, rank = node.attrs.get("auto_pad") or "NOTSET", len(taps)
    if mode == "VALID":
        return [0] * rank
    if mode == "NOTSET" and not node.integers("output_shape"):
        return _numbers(node, "pads", 0, rank)[:rank]
    if mode not in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
        return []
    strides = _numbers(node, "strides", 1, rank)
    dilations = _numbers(node, "dilations", 1, rank)
    extra = _numbers(node, "output_padding", 0, rank)
    sizes = zip(taps, small, large, strides, dilations, extra, strict=True)
    totals = [
        max(0, (count - 1) * stride + (tap - 1) * dilation + 1 + more - size)
        for tap, count, size, stride, dilation, more in sizes
    ]
    return [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]


def _spatial(node: Node, taps: Shape, transposed: bool = False) -> Windows:
    """Windows of the spatial dimensions; none where they cannot be told.

    A range of the result of a transposed convolution needs the input positions of which some tap
    reaches it.
    """
    rank, result = len(taps), node.result.shape
    lead = len(result) - rank
    small, large = node.shape(0)[lead:], result[lead:]
    if not transposed:
        small, large = large, small
    strides = _numbers(node, "strides", 1, rank)
    dilations = _numbers(node, "dilations", 1, rank)
    pads = _pads_before(node, taps, small, large)
    if not len(strides) == len(dilations) == len(pads) == rank:
        return ()
    windows = []
    for axis, (stride, dilation, pad) in enumerate(zip(strides, dilations, pads, strict=True)):
        reach = (taps[axis] - 1) * dilation
        if transposed:
            low = min(pad - reach + stride - 1, pad)
            windows.append(Window(lead + axis, 1, stride, low, pad))
        else:
            windows.append(Window(lead + axis, stride, 1, -pad, reach - pad))
    return tuple(windows)


def _divided(node: Node, weight: int = 1, bias: int = 2, channels: Window = ALL) -> Division:
    """``channels`` is the window of the input channels of one that is not grouped."""
    filters, result = node.shape(weight), node.result.shape
    groups = node.attrs.get("group", 1)
    spatial = _spatial(node, filters[2:])
    if not spatial or len(result) != len(filters):
        return WHOLE
    inputs = Window(1, 1, filters[0] // groups, unit=filters[1]) if groups > 1 else channels
    operands: dict[int, Windows] = {
        0: (Window(0), inputs, *spatial),
        weight: (Window(1), ALL if groups > 1 else channels, *(ALL for _ in spatial)),
    }
    if node.optional(bias):
        operands[bias] = (Window(1),)
    return divided(operands, ("batch", "channels", *("y" for _ in result[3:]), "x"))


def _with_sum(node: Node) -> Division:
    """An activation follows the sum, which therefore cannot be in parts; an operand may be added
    before it."""
    found = _divided(node)
    if found.operands and node.optional(3):
        found.operands[3] = aligned(node.shape(3), node.result.shape)
    return found


def _transposed_divided(node: Node) -> Division:
    """Its loops run over input pixels: a row of the result meets those whose taps reach it, and as
    large a share of the work as it is."""
    filters, data, result = node.shape(1), node.shape(0), node.result.shape
    groups, rank = node.attrs.get("group", 1), len(filters) - 2
    more = _numbers(node, "output_padding", 0, rank)
    if len(more) != rank:
        raise ModelError(
            f"its output_padding {more} is not of its {rank} dimensions: the file is damaged,"
            " export it again"
        )
    spatial = _spatial(node, filters[2:], transposed=True)
    if not spatial:
        return WHOLE
    inputs = Window(1, 1, filters[1], unit=filters[0] // groups) if groups > 1 else ALL
    outputs = ALL if groups > 1 else Window(1)
    operands: dict[int, Windows] = {
        0: (Window(0), inputs, *spatial),
        1: (inputs, outputs, *(ALL for _ in spatial)),
    }
    if node.optional(2):
        operands[2] = (Window(1),)
    # A piece has a row of input to itself at least.
    steps = {axis: -(-result[axis] // data[axis]) for axis in range(2, len(result))}
    loops = ("batch", "channels", *("" for _ in result[4:]), *("y" for _ in result[3:4]), "x")
    return divided(operands, loops, steps)


def _causal(node: Node) -> Work:
    """Each channel by itself, over the current and the earlier steps."""
    shape, (channels, *_, taps) = node.shape(0), node.shape(1)
    nest = LoopNest(
        k=1, c=1, x=math.prod(shape[1:]) // channels, s=taps, groups=channels, batch=shape[0]
    )
    return product(named(node, nest))


def _pool(node: Node) -> Work:
    window = math.prod(node.integers("kernel_shape") or [1])
    return Work(OpClass.REDUCTION, elements=node.result.count * window)


def _pooled(node: Node) -> Division:
    spatial = _spatial(node, tuple(node.integers("kernel_shape") or ()))
    others = identity(len(node.result.shape) - len(spatial))
    return divided({0: (*others, *spatial)}) if spatial else WHOLE


rule("Conv", _convolution, partial(_divided, channels=SUMMED))
# The zero point of weights may be one for each channel, as a bias is.
rule("ConvInteger", _convolution, partial(_divided, bias=3))
rule("QLinearConv", partial(_convolution, weight=3), partial(_divided, weight=3, bias=8))
rule("DeformConv", _convolution)
rule("ConvTranspose", partial(_convolution, transposed=True), _transposed_divided)
rule("CausalConvWithState", _causal)
rule("AveragePool MaxPool LpPool", _pool, _pooled)

variant("NhwcConv", like="Conv")
variant("NhwcFusedConv", like="Conv")
variant("NhwcMaxPool", like="MaxPool")
variant("QLinearAveragePool", like="AveragePool")
variant("FusedConv", like="Conv", division=_with_sum)
