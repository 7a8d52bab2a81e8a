"""How a node divides. What no family of operators has a rule for is not cut: it stays a job of its
own."""

from __future__ import annotations

from dataclasses import replace

# Importing a family of operators registers its rules.
from loadmaster.workloads.frontends.onnx.division import (  # noqa: F401
    attention,
    convolutions,
    layouts,
    normalisations,
    products,
    resizing,
)
from loadmaster.workloads.frontends.onnx.division.elementwise import elementwise
from loadmaster.workloads.frontends.onnx.division.table import RULES, WHOLE, Division
from loadmaster.workloads.frontends.onnx.types import Node
from loadmaster.workloads.graph import LoopNest, OpClass


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
