"""What every verifier says of an answer that does not hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

SHOWN = 20
"""Violations of one rule that are told; then only how many more there are."""


@dataclass(frozen=True)
class Violation:
    """A rule that an answer breaks, and in one line who breaks it, where and when."""

    rule: str
    """Name of the rule."""
    message: str
    """What breaks it, in words."""


def first_violations(broken: Iterable[tuple[str, str]]) -> tuple[Violation, ...]:
    """The first 20 of (rule, message) pairs, as records."""
    return tuple(Violation(rule, message) for rule, message in islice(broken, SHOWN))
