"""The table of rules for the work of operators; each family registers its rules in a module of its
own. Shapes are in ``shapes.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadmaster.workloads.frontends.onnx.contrib import MICROSOFT
from loadmaster.workloads.frontends.onnx.types import Node, Work
from loadmaster.workloads.graph import OpClass

WorkRule = Callable[[Node], Work]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a kind of operator: ``work`` computes a node's work; constants among the operands
    ``planning`` are not read later."""

    work: WorkRule
    planning: frozenset[int]


_RULES: dict[tuple[str, str], Rule] = {}
_UNKNOWN = Rule(lambda _: Work(OpClass.UNKNOWN), frozenset())


def rule(
    *kinds: str, domain: str = "", planning: tuple[int, ...] = ()
) -> Callable[[WorkRule], WorkRule]:
    """Register the decorated function for operators ``kinds`` of ``domain``."""

    def register(work: WorkRule) -> WorkRule:
        _RULES.update({(domain, kind): Rule(work, frozenset(planning)) for kind in kinds})
        return work

    return register


def rule_of(domain: str, kind: str) -> Rule:
    """Return the rule for an operator; an unknown one is planned with its true bytes and no
    arithmetic."""
    domain = "" if domain == "ai.onnx" else domain
    fallback = _RULES.get(("", kind), _UNKNOWN) if domain == MICROSOFT else _UNKNOWN
    return _RULES.get((domain, kind), fallback)
