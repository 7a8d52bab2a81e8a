"""Finds views: nodes that return their first operand's storage and move no bytes."""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.workloads.frontends.onnx.types import REPLANNED, Node, Value

Test = Callable[[Node, Value], bool]


def is_view(node: Node) -> bool:
    """Whether the only output that is needed holds the same bytes in the same order as the first
    operand."""
    test = _TESTS.get(node.kind)
    source = node.optional(0)
    needed = [value for value in node.outputs if value is not None]
    if test is None or source is None or len(needed) != 1 or needed[0] is not node.outputs[0]:
        return False
    return source.count == needed[0].count and test(node, source)


def _always(node: Node, source: Value) -> bool:
    return True


def _same_shape(node: Node, source: Value) -> bool:
    return source.shape == node.result.shape


def _forward(node: Node, source: Value) -> bool:
    """A slice of everything that does not run backwards."""
    steps = node.integers("steps", 4) if node.optional(4) else []
    return _same_shape(node, source) and steps is not None and all(step > 0 for step in steps)


def _unpadded(node: Node, source: Value) -> bool:
    return _same_shape(node, source) and not any(
        node.integers("pads", 1) or node.integers("paddings") or [1]
    )


def _alone(node: Node, source: Value) -> bool:
    """The other operands hold no elements."""
    return (
        all(value is source or value.count == 0 for value in node.present)
        and node.inputs.count(source) == 1
    )


def _inference(node: Node, source: Value) -> bool:
    """Dropout that is not training: from opset 12 on an operand says so, in opset 6 and before an
    attribute did."""
    training = node.optional(2)
    return training is None or (training.data is not None and not training.data.any())


def _same_storage(node: Node, source: Value) -> bool:
    """A cast between types that are planned alike; rounding to a quantised type is work."""
    result = node.result
    alike = source.dtype == result.dtype or (
        source.dtype in REPLANNED and result.dtype in REPLANNED
    )
    return alike and source.stored == result.stored


def _keeps_order(node: Node, source: Value) -> bool:
    """Only axes of size one move. Weights can be laid out either way before the first inference."""
    order = node.integers("perm") or list(range(len(source.shape)))[::-1]
    moved = [axis for axis in order if source.shape[axis] > 1]
    return source.constant or moved == sorted(moved)


_TESTS: dict[str, Test] = {
    **dict.fromkeys(
        ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "DequantizeLinear"), _always
    ),
    **dict.fromkeys(("Expand", "Tile", "Split"), _same_shape),
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _alone),
    **dict.fromkeys(("Cast", "CastLike"), _same_storage),
    "Dropout": _inference,
    "Transpose": _keeps_order,
    "Slice": _forward,
    "Pad": _unpadded,
}
