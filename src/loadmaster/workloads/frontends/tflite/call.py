"""An operator of a TensorFlow Lite file with its operands, and what it is in ONNX.

TensorFlow Lite puts channels last, and the input channels of weights too. The rules of the ONNX
frontend want them second. An operand is handed to a rule with its dimensions permuted; the windows
that the rule finds are permuted back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.workloads.frontends.onnx.rules import WHOLE, Division
from loadmaster.workloads.frontends.onnx.types import Node, Shape, Value
from loadmaster.workloads.frontends.tflite.flatbuffer import Table
from loadmaster.workloads.window import Window


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    """One operator of a file with its operands, and its options by number of their field."""

    cure = "convert the model again"
    options: Table | None = None

    def numbers(self, index: int) -> list[int] | None:
        """The elements of a constant operand, where they are known."""
        value = self.optional(index)
        return value.integers() if value else None

    def option(self, field: int, default: int = 0, code: str = "i") -> int:
        """A number among the options."""
        return self.options.number(field, code, default) if self.options else default


@dataclass(frozen=True, slots=True)
class Laid:
    """An operand as a rule sees it: dimension ``i`` is dimension ``order[i]`` of the file's; None
    if dimensions were merged or split."""

    value: Value
    order: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Meaning:
    """An operator of ONNX: its kind, its operands, the first result, and attributes. Operands that
    are left out are read all the same."""

    kind: str
    operands: tuple[Laid | None, ...]
    result: Laid
    attributes: Mapping[str, Any] = field(default_factory=dict)


def as_is(value: Value) -> Laid:
    """An operand in the file's order."""
    return Laid(value, tuple(range(len(value.shape))))


def permuted(value: Value, *order: int) -> Laid:
    """An operand with its dimensions in another order."""
    return Laid(replace(value, shape=tuple(value.shape[axis] for axis in order)), order)


def reshaped(value: Value, shape: Shape) -> Laid:
    """An operand of another shape with as many elements."""
    return Laid(replace(value, shape=shape), None)


def channels_second(value: Value) -> Laid:
    """An operand or a result whose channels are last, with them in the second place."""
    rank = len(value.shape)
    return permuted(value, 0, rank - 1, *range(1, rank - 1))


def in_file_order(found: Division, operands: Sequence[Laid | None], result: Laid) -> Division:
    """What a rule found, about dimensions as the file orders them."""
    if result.order is None or found is WHOLE:
        return WHOLE
    order = result.order
    windows = {
        index: _windows(found.operands[index], laid.order, order)
        for index, laid in enumerate(operands)
        if laid is not None and laid.order is not None and found.operands.get(index)
    }
    loops = (
        tuple(loop for _, loop in sorted(zip(order, found.loops, strict=True)))
        if found.loops
        else ()
    )
    steps = {order[axis]: step for axis, step in found.steps.items()}
    copies = found.copies and len(windows) == len(found.operands)
    return Division(
        tuple(sorted(order[axis] for axis in found.axes)), windows, loops, steps, copies
    )


def _windows(
    windows: Sequence[Window], operand: Sequence[int], result: Sequence[int]
) -> tuple[Window, ...]:
    placed = [
        replace(window, axis=result[window.axis]) if window.axis >= 0 else window
        for window in windows
    ]
    return tuple(
        window for _, window in sorted(zip(operand, placed, strict=True), key=lambda pair: pair[0])
    )
