"""Replaces calls of a file's own functions by their bodies."""

from __future__ import annotations

import graphlib

import onnx
from onnx import inliner

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.order import nested_nodes

LARGEST_EXPANSION = 1_000_000
"""The most nodes after inlining; functions that call functions can describe exponentially many."""

Key = tuple[str, str]


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline the model's local functions; those of another opset than the model's stay calls.

    Raises
    ------
    ModelError
        Functions call each other in a circle, or their expansion is too large.
    """
    if not model.functions:
        return model
    bodies = {(function.domain, function.name): list(function.node) for function in model.functions}
    calls = {
        key: [(node.domain, node.op_type) for node in nested_nodes(nodes)]
        for key, nodes in bodies.items()
    }
    total = _expanded(
        calls, [(node.domain, node.op_type) for node in nested_nodes(model.graph.node)]
    )
    if total > LARGEST_EXPANSION:
        raise ModelError(
            f"its functions expand to {total} operators, more than {LARGEST_EXPANSION}: inline or"
            " simplify them first"
        )
    return inliner.inline_local_functions(model)


def _expanded(calls: dict[Key, list[Key]], top: list[Key]) -> int:
    """Number of nodes after inlining: each function's size from the sizes of those it calls."""
    try:
        order = list(
            graphlib.TopologicalSorter(
                {key: set(inner) & calls.keys() for key, inner in calls.items()}
            ).static_order()
        )
    except graphlib.CycleError as error:
        name = error.args[1][0][1]
        raise ModelError(
            f"function {name!r} calls itself: a network must be acyclic, export it again"
        ) from None
    sizes: dict[Key, int] = {}
    for key in order:
        sizes[key] = sum(sizes.get(inner, 1) for inner in calls[key])
    return sum(sizes.get(key, 1) for key in top)
