"""How operators divide: the record, and the table to which every family of operators adds its
rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loadmaster.workloads.frontends.onnx.types import Node, Shape
from loadmaster.workloads.window import ALL, Window

Windows = tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How an operator divides: ``axes`` are dimensions of the result that can be cut without
    repeating work, ``operands`` the windows of its operands by position (all of an operand is
    needed where there are none), ``loops`` the loop of each loop nest that every dimension of the
    result belongs to. ``steps`` says of which numbers of elements the pieces of a dimension are
    multiples; ``copies``, whether the operator only puts elements elsewhere."""

    axes: tuple[int, ...] = ()
    operands: dict[int, Windows] = field(default_factory=dict)
    loops: tuple[str, ...] = ()
    steps: dict[int, int] = field(default_factory=dict)
    copies: bool = False


WHOLE = Division()
DivisionRule = Callable[[Node], Division]
RULES: dict[str, DivisionRule] = {}


def division_rule(*kinds: str) -> Callable[[DivisionRule], DivisionRule]:
    """Register the decorated function for operators ``kinds``, of ONNX or of its contributed
    domain."""

    def register(rule: DivisionRule) -> DivisionRule:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def aligned(operand: Shape, result: Shape) -> Windows:
    """Windows of an operand that is broadcast to the result by numpy's rules."""
    shift = len(result) - len(operand)
    return tuple(
        Window(axis + shift) if extent == result[axis + shift] else ALL
        for axis, extent in enumerate(operand)
    )


def along(rank: int, axes: set[int]) -> Division:
    """Work along some axes of a tensor that keeps its shape."""
    return Division(
        tuple(a for a in range(rank) if a not in axes),
        {0: tuple(ALL if a in axes else Window(a) for a in range(rank))},
    )
