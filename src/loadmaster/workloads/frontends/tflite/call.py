"""An operator of a TensorFlow Lite file with its operands, and what it is in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.types import Value
from loadmaster.workloads.frontends.tflite.flatbuffer import Table
from loadmaster.workloads.frontends.tflite.layouts import Laid


@dataclass(frozen=True, slots=True)
class Call:
    """One operator of a file with its operands."""

    kind: str
    options: Table | None
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]

    def operand(self, index: int) -> Value:
        """Operand ``index``, which must be there."""
        value = self.optional(index)
        if value is None:
            raise ModelError(
                f"operand {index} is missing: the file is damaged, convert the model again"
            )
        return value

    def optional(self, index: int) -> Value | None:
        """Operand ``index``, or None where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integers(self, index: int) -> list[int] | None:
        """The elements of a constant operand, where they are known."""
        value = self.optional(index)
        return value.integers() if value else None

    def option(self, field: int, default: int = 0, code: str = "i") -> int:
        """A number among the options."""
        return self.options.number(field, code, default) if self.options else default

    @property
    def result(self) -> Value:
        """The first result."""
        if not self.outputs:
            raise ModelError("has no result: the file is damaged, convert the model again")
        return self.outputs[0]


@dataclass(frozen=True, slots=True)
class Meaning:
    """An operator of ONNX: its kind, its operands, the first result, and attributes. Operands that
    are left out are read all the same."""

    kind: str
    operands: tuple[Laid | None, ...]
    result: Laid
    attributes: Mapping[str, Any] = field(default_factory=dict)
