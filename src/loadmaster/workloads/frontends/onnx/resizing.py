"""How resizing divides: which neighbours a range of positions needs."""

from __future__ import annotations

import math
from fractions import Fraction

from loadmaster.workloads.frontends.onnx.movement import movement
from loadmaster.workloads.frontends.onnx.rules import WHOLE, Division, divided, rule
from loadmaster.workloads.frontends.onnx.types import Node, Shape
from loadmaster.workloads.window import Window

_HALF = Fraction(1, 2)


def _resize(node: Node) -> Division:
    """The neighbours of every position: one, two or four along a dimension."""
    data, result = node.shape(0), node.result.shape
    scales, neighbours = _scales(node, data, result), _neighbours(node)
    if (
        scales is None
        or neighbours is None
        or 0 in scales
        or node.attrs.get("antialias", 0)
        or len(data) != len(result)
    ):
        return WHOLE
    windows = []
    for axis, (before, after, scale) in enumerate(zip(data, result, scales, strict=True)):
        position = _position(node, before, after, scale)
        if position is None:
            return WHOLE
        windows.append(
            Window(axis)
            if before == after and scale == 1
            else _nearby(axis, before, after, position, neighbours)
        )
    return divided({0: tuple(windows)})


def _attribute(node: Node, name: str, default: str, before_opset_11: str) -> str:
    modern = node.kind == "Resize" and (node.opset == 0 or node.opset >= 11)
    value: str = node.attrs.get(name, default if modern else before_opset_11)
    return value


def _scales(node: Node, data: Shape, result: Shape) -> list[Fraction] | None:
    """Elements of the result for one of the operand, along every dimension; None where they are not
    known."""
    given = node.attrs.get("scales")
    value = node.optional(1 if node.kind == "Upsample" or node.opset == 10 else 2)
    if given is None and value is not None and value.count:
        if value.data is None:
            return None
        given = value.data.ravel().tolist()
    if given is None:
        stretched = node.attrs.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        return (
            [Fraction(after, before) for before, after in zip(data, result, strict=True)]
            if stretched and all(data)
            else None
        )
    axes = node.integers("axes") or list(range(len(data)))
    if len(given) != len(axes):
        return None
    found = dict.fromkeys(range(len(data)), Fraction(1)) | {
        a % len(data): Fraction(g) for a, g in zip(axes, given, strict=True)
    }
    return [found[axis] for axis in range(len(data))]


def _position(
    node: Node, before: int, after: int, scale: Fraction
) -> tuple[Fraction, Fraction] | None:
    """Slope and offset of the position in the operand as a function of the one in the result."""
    mode = _attribute(node, "coordinate_transformation_mode", "half_pixel", "asymmetric")
    if after == 1 and mode in ("pytorch_half_pixel", "align_corners"):
        return Fraction(0), Fraction(0)
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
        "half_pixel_symmetric": centred
        + Fraction(before, 2) * (1 - Fraction(after) / (scale * before)),
    }
    return (1 / scale, offsets[mode]) if mode in offsets else None


def _neighbours(node: Node) -> tuple[Fraction, Fraction, bool] | None:
    """What is added to a position, and whether it is rounded up then, to find the first and the
    last neighbour."""
    mode = node.attrs.get("mode", "nearest")
    if mode in ("linear", "bilinear"):
        return Fraction(0), Fraction(1), False
    if mode == "cubic":
        return Fraction(-1), Fraction(2), False
    rounding = _attribute(node, "nearest_mode", "round_prefer_floor", "floor")
    shift = {"floor": Fraction(0), "ceil": Fraction(0), "round_prefer_ceil": _HALF}.get(
        rounding, -_HALF
    )
    up = rounding not in ("floor", "round_prefer_ceil")
    return (shift, shift, up) if mode == "nearest" else None


def _nearby(
    axis: int,
    before: int,
    after: int,
    position: tuple[Fraction, Fraction],
    neighbours: tuple[Fraction, Fraction, bool],
) -> Window:
    """The neighbours of a range of positions; of those outside the operand, the nearest element
    stands for them."""
    (slope, offset), (first, last, up) = position, neighbours
    whole = math.lcm(slope.denominator, (offset + first).denominator, (offset + last).denominator)
    numerator, more = int(slope * whole), whole - 1 if up else 0
    low = int((offset + first) * whole) + more
    high = int((offset + last) * whole) + more
    low = min(low, before * whole - 1 - (after - 1) * numerator)
    return Window(axis, numerator, whole, low, max(low, high, 0))


rule("Upsample", movement, _resize, planning=(1,))
rule("Resize", movement, _resize, planning=(1, 2, 3))
