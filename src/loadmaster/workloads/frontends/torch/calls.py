"""Records of one value and one call of an operator in a torch trace, and the table of rules for
their work."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.workloads.frontends.onnx.types import Work
from loadmaster.workloads.graph import LoopNest, OpClass


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of a trace: ``bytes`` are those that using it touches (an expanded dimension
    repeats the same ones).

    ``offset`` counts elements of the storage before the first.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    bytes: int
    itemsize: int
    floating: bool
    offset: int = 0

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the operator ``name`` (no namespace, no overload, no trailing underscore):
    arguments by name, and resulting tensors."""

    name: str
    arguments: Mapping[str, Any]
    results: tuple[Value, ...]

    def tensor(self, argument: str) -> Value:
        """Return a tensor argument; raises if it is none."""
        value = self.arguments[argument]
        assert isinstance(value, Value)
        return value

    @property
    def first(self) -> Value:
        """The first tensor among the arguments, or the first result if there is none."""
        return next(
            (value for value in self.arguments.values() if isinstance(value, Value)),
            self.results[0],
        )

    @property
    def largest(self) -> int:
        """Number of elements of the largest argument or result."""
        values = [value for value in self.arguments.values() if isinstance(value, Value)]
        return max((value.count for value in (*values, *self.results)), default=0)


WorkRule = Callable[[Call], Work]
RULES: dict[str, WorkRule] = {}
"""Rules for the work of operators, by name; each family registers its own."""


def rule(names: str) -> Callable[[WorkRule], WorkRule]:
    """Register the decorated function for the operators ``names``, which spaces separate."""

    def register(work: WorkRule) -> WorkRule:
        RULES.update(dict.fromkeys(names.split(), work))
        return work

    return register


def with_backward(names: str) -> str:
    """Names of operators and of their gradients."""
    return " ".join(f"{name} {name}_backward" for name in names.split())


def product(*nests: LoopNest, elements: int = 0) -> Work:
    """Make the work of multiply-accumulate loops, without empty ones."""
    real = tuple(nest for nest in nests if nest.macs > 0)
    return Work(OpClass.PRODUCT, real, elements)
