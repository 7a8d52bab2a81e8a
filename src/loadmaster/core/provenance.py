"""Provenance of cost figures: a label that is carried from the target or table to every output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Label(StrEnum):
    """The kind of evidence behind a figure, the weakest first."""

    ESTIMATED = "estimated"
    """Computed by a model whose figures were not compared with a machine."""
    CALIBRATED = "calibrated"
    """Computed by a model whose figures were fitted to measurements (`loadmaster calibrate`)."""
    PUBLISHED = "published"
    """Stated by a paper or a data sheet."""
    MEASURED = "measured"
    """Read from a clock or a counter."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The label of ``count`` figures, and their source: a target, a file, a paper."""

    label: Label
    """How far the source can be trusted."""
    source: str
    """Source of the costs; the wording is not stable."""
    count: int = 1
    """Number of jobs or kernels whose costs come from it."""

    def __str__(self) -> str:
        """Return the label, then the source."""
        return f"{self.label} ({self.source})"


def merged(parts: Iterable[Provenance]) -> tuple[Provenance, ...]:
    """Add up the counts of parts with one label and one source, in order of their first
    appearance."""
    counts: Counter[tuple[Label, str]] = Counter()
    for part in parts:
        counts[part.label, part.source] += part.count
    return tuple(Provenance(*key, count) for key, count in counts.items())


def weakest(parts: Sequence[Provenance]) -> Label:
    """Return the label of a figure that rests on all of the parts; what rests on nothing is
    estimated."""
    order = list(Label)
    return min((part.label for part in parts), key=order.index, default=Label.ESTIMATED)


def described(parts: Sequence[Provenance]) -> str:
    """Describe the parts in a line: ``"measured (times.csv)"`` or ``"45 measured (times.csv), 3
    estimated (roofline of x)"``."""
    if len(parts) == 1:
        return str(parts[0])
    return ", ".join(f"{part.count} {part}" for part in parts) or str(Label.ESTIMATED)


@dataclass(frozen=True, slots=True)
class CostBasis:
    """What costs rest on, as every ``--json`` has it under ``costs``."""

    label: Label
    """The weakest label of the parts."""
    parts: Sequence[Provenance] = field(metadata={"key": "from"})
    """The parts."""


def costs_of(parts: Sequence[Provenance]) -> CostBasis:
    """Label the parts."""
    return CostBasis(weakest(parts), parts)
