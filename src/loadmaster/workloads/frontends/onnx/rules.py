"""What an operator is understood by. One rule for each kind says what it does, how it divides, when
it is a view, and its shapes where the onnx package does not know them.

Each family of operators registers its rules in a module of its own; ``operators.py`` looks them up.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from loadmaster.workloads.frontends.onnx.types import Node, Shape, Value, Work
from loadmaster.workloads.window import ALL, Window

MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
"""The domain of operators in files that ONNX Runtime optimised for one processor: channels are in
padded blocks."""

EVERY = range(2**31)
"""Positions of all operands."""

Windows = tuple[Window, ...]
Result = tuple[str, Shape]
"""Element type and shape of an output."""


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
    steps: Mapping[int, int] = field(default_factory=dict)
    copies: bool = False


WHOLE = Division()

WorkRule = Callable[[Node], Work]
DivisionRule = Callable[[Node], Division]
ShapeRule = Callable[[Node], list[Result]]
ViewTest = Callable[[Node, Value], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a kind of operator.

    ``work`` computes a node's work, ``division`` how it divides, None if it is not cut; ``view``
    tells whether a node with as many elements as its first operand only renames them. Constants
    among the operands ``planning`` are not read later. ``shapes`` are those of the first outputs;
    without them the standard operator ``like`` it, or of its name, has the same with these
    ``operands``.
    """

    work: WorkRule
    division: DivisionRule | None = None
    view: ViewTest | None = None
    shapes: ShapeRule | None = None
    planning: tuple[int, ...] = ()
    like: str = ""
    operands: Container[int] = EVERY


RULES: dict[tuple[str, str], Rule] = {}
"""Rules by domain and kind."""


def rule(
    kinds: str,
    work: WorkRule,
    division: DivisionRule | None = None,
    *,
    view: ViewTest | None = None,
    shapes: ShapeRule | None = None,
    planning: tuple[int, ...] = (),
    like: str = "",
    operands: Container[int] = EVERY,
    domain: str = "",
) -> None:
    """Register the rule of the operators ``kinds``, which spaces separate."""
    made = Rule(work, division, view, shapes, planning, like, operands)
    RULES.update({(domain, kind): made for kind in kinds.split()})


def variant(
    kinds: str,
    like: str,
    division: DivisionRule | None = None,
    operands: Container[int] = EVERY,
    domain: str = MICROSOFT,
) -> None:
    """Register variants of a standard operator, among whose operands are those of that one, in
    their order; they may divide in another way."""
    made = replace(RULES["", like], like=like, operands=operands)
    made = replace(made, division=division or made.division)
    RULES.update({(domain, kind): made for kind in kinds.split()})


def divided(
    operands: dict[int, Windows],
    loops: tuple[str, ...] = (),
    steps: Mapping[int, int] | None = None,
    copies: bool = False,
) -> Division:
    """Make the division of an operator that can be cut along every dimension that a window
    follows."""
    axes = {window.axis for windows in operands.values() for window in windows}
    return Division(
        tuple(sorted(axis for axis in axes if axis >= 0)), operands, loops, steps or {}, copies
    )


@lru_cache(maxsize=1024)
def aligned(operand: Shape, result: Shape) -> Windows:
    """Windows of an operand that is broadcast to the result by numpy's rules; none if it cannot
    be."""
    shift = len(result) - len(operand)
    pairs = list(zip(operand, result[max(0, shift) :], strict=False))
    if shift < 0 or any(extent not in (1, size) for extent, size in pairs):
        return ()
    return tuple(
        Window(axis + shift) if extent == size else ALL for axis, (extent, size) in enumerate(pairs)
    )


def along(node: Node, axes: Iterable[int]) -> Division:
    """Work along some axes of a tensor that keeps its shape."""
    rank = len(node.result.shape)
    together = {axis % rank for axis in axes}
    return divided({0: tuple(ALL if a in together else Window(a) for a in range(rank))})
