"""Looks up the rule of an operator, and applies it to a node."""

from __future__ import annotations

from dataclasses import replace

# Importing a family of operators registers its rules.
from loadmaster.workloads.frontends.onnx import (  # noqa: F401
    attention,
    elementwise,
    products,
    reductions,
)
from loadmaster.workloads.frontends.onnx.rules import (
    MICROSOFT,
    NCHWC,
    RULES,
    WHOLE,
    Division,
    Node,
    Rule,
    Value,
    Work,
)
from loadmaster.workloads.graph import OpClass

_UNKNOWN = Rule(lambda _: Work(OpClass.UNKNOWN))
_UNCUT = (OpClass.VIEW, OpClass.SHAPE, OpClass.CONTROL_FLOW, OpClass.UNKNOWN)


def rule_of(domain: str, kind: str) -> Rule:
    """Return the rule for an operator; an unknown one is planned with its true bytes and no
    arithmetic. ONNX Runtime's domains have standard operators, too."""
    own = RULES.get((domain, kind))
    standard = domain in ("", MICROSOFT, NCHWC)
    return own or (RULES.get(("", kind), _UNKNOWN) if standard else _UNKNOWN)


def work_of(node: Node) -> Work:
    """Return the work of a node; rules take channels to come second."""
    if has_channels_last(node):
        outputs = tuple(value and moved_channels(value) for value in node.outputs)
        inputs = (moved_channels(node.operand(0)), *node.inputs[1:])
        node = replace(node, inputs=inputs, outputs=outputs)
    return rule_of(node.domain, node.kind).work(node)


def division_of(node: Node, op_class: OpClass) -> Division:
    """Return how a node with this kind of work divides; :data:`WHOLE` if unknown or if anything
    needs other results than the first."""
    found = rule_of(node.domain, node.kind).division
    first, *others = node.outputs or (None,)
    if (
        found is None
        or op_class in _UNCUT
        or first is None
        or any(others)
        or not first.shape
        # Rules take channels to come second.
        or node.domain == NCHWC
        or has_channels_last(node)
    ):
        return WHOLE
    made = found(node)
    # What is all padding, or what strides step over, is needed as a whole: else no piece reads it.
    operands = {
        index: windows
        for index, windows in made.operands.items()
        if (value := node.optional(index))
        and all(
            window.elements_read(first.shape, extent)
            for window, extent in zip(windows, value.shape, strict=False)
        )
    }
    return replace(made, operands=operands)


def is_view(node: Node) -> bool:
    """Whether the only output that is needed holds the same bytes in the same order as the first
    operand."""
    test = rule_of(node.domain, node.kind).view
    source, needed = node.optional(0), node.results
    if test is None or source is None or len(needed) != 1 or needed[0] is not node.outputs[0]:
        return False
    return source.count == needed[0].count and test(node, source)


def has_channels_last(node: Node) -> bool:
    """Whether a variant of a standard operator has its channels in the last dimension."""
    return (
        node.domain == MICROSOFT
        and rule_of(node.domain, node.kind).shapes is None
        and (node.kind.startswith("Nhwc") or bool(node.attrs.get("channels_last")))
    )


def moved_channels(value: Value) -> Value:
    """Return a value with its last dimension as dimension 1."""
    return replace(value, shape=(value.shape[0], value.shape[-1], *value.shape[1:-1]))
