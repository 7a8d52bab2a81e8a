"""How a node divides. What no family of operators has a rule for is not cut: it stays a job of its
own."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.workloads.frontends.onnx.division import (  # noqa: F401
    attention,
    convolutions,
    layouts,
    normalisations,
    products,
    resizing,
)
from loadmaster.workloads.frontends.onnx.division.table import (
    RULES,
    WHOLE,
    Division,
    Windows,
    aligned,
    division_rule,
)
from loadmaster.workloads.frontends.onnx.types import Node, Shape
from loadmaster.workloads.graph import LoopNest, OpClass
from loadmaster.workloads.window import Window, identity


def _broadcasts(operand: Shape, result: Shape) -> bool:
    shift = len(result) - len(operand)
    return shift >= 0 and all(
        extent in (1, result[axis + shift]) for axis, extent in enumerate(operand)
    )


def elementwise(node: Node) -> Division:
    """Every element of the result needs the matching one of each operand; what does not broadcast
    is needed as a whole."""
    shape = node.result.shape
    operands = {
        i: aligned(v.shape, shape)
        for i, v in enumerate(node.inputs)
        if v and _broadcasts(v.shape, shape)
    }
    return Division(tuple(range(len(shape))), operands)


@division_rule("QuantizeLinear", "DequantizeLinear")
def _quantisation(node: Node) -> Division:
    """Scales and zero points: one, one for each element of an axis, or one for each block along
    it."""
    shape = node.result.shape
    axis, block = node.attrs.get("axis", 1) % len(shape), node.attrs.get("block_size", 0)
    operands: dict[int, Windows] = {0: identity(len(shape))}
    for index in range(1, len(node.inputs)):
        scales = node.shape(index) if node.optional(index) else ()
        if len(scales) == 1 and scales[0] == shape[axis]:
            operands[index] = (Window(axis),)
        elif len(scales) == len(shape) and block:
            operands[index] = tuple(
                Window(d, 1, block) if d == axis else Window(d) for d in range(len(shape))
            )
    return Division(tuple(range(len(shape))), operands)


@division_rule(
    "BiasSplitGelu",
    "SwiGLU",
    "MelWeightMatrix",
    "MurmurHash3",
    "BitmaskDropout",
    "BitmaskBiasDropout",
    "GatedAdd",
)
def _not_by_position(node: Node) -> Division:
    """Counted as elementwise, yet an element needs others than the matching ones."""
    return WHOLE


def division(node: Node, op_class: OpClass) -> Division:
    """How a node divides; :data:`WHOLE` if that is not known, or if it has several results."""
    if (
        node.domain not in ("", "ai.onnx", "com.microsoft")
        or sum(value is not None for value in node.outputs) != 1
    ):
        return WHOLE
    if node.attrs.get("channels_last"):
        # The rules below take channels to come second.
        return WHOLE
    rule = RULES.get(node.kind, elementwise if op_class is OpClass.ELEMENTWISE else None)
    return rule(node) if rule and node.result.shape else WHOLE


def with_loops(nest: LoopNest, loops: tuple[str, ...]) -> LoopNest:
    """The nest, knowing which of its loops each dimension of the result is."""
    return replace(nest, loops=loops) if loops else nest
