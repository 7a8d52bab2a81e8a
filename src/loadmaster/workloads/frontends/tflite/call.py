"""An operator of a TensorFlow Lite file with its operands, and what it is in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadmaster.workloads.frontends.onnx.types import Node
from loadmaster.workloads.frontends.tflite.flatbuffer import Table
from loadmaster.workloads.frontends.tflite.layouts import Laid


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
class Meaning:
    """An operator of ONNX: its kind, its operands, the first result, and attributes. Operands that
    are left out are read all the same."""

    kind: str
    operands: tuple[Laid | None, ...]
    result: Laid
    attributes: Mapping[str, Any] = field(default_factory=dict)
