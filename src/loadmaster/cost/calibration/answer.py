"""The answer of a calibration: figures with what the measurements say of each, and errors before
and after."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Standing(StrEnum):
    """What the measurements say of a figure."""

    FITTED = "fitted"
    """Some rows take as long as they do because of it."""
    BOUNDED = "bounded"
    """No row is limited by it any more: the machine is at least so good."""
    KEPT = "kept"
    """The rows cannot tell: it is as the target had it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A field of the target before and after, in the file's base unit, and how many distinct layers
    it limits."""

    field: str
    before: float
    after: float
    standing: Standing
    layers: int


@dataclass(frozen=True, slots=True)
class Errors:
    """Distances of modelled from measured times: the factor between them less 1, its geometric mean
    and its median over rows; and, with its sign, the distance of their sums relative to the
    measured one."""

    mean: float
    median: float
    total: float


@dataclass(frozen=True, slots=True)
class KindErrors:
    """Errors of the rows of one kind of operator; ``held_out`` are those of rows that the fit had
    not seen, None where that cannot be."""

    kind: str
    rows: int
    before: Errors
    after: Errors
    held_out: Errors | None


@dataclass(frozen=True)
class Calibration:
    """A calibrated target as TOML, with what it rests on.

    Attributes
    ----------
    text
        The target file.
    base, measured, sha256, rows
        Name of the target, name and digest of the file of measurements, and its rows that were
        used.
    figures
        Every figure that calibration may change.
    kinds
        Errors by kind of operator, most time first; ``all`` comes first.
    skipped
        What was not used, and why.
    """

    text: str
    base: str
    measured: str
    sha256: str
    rows: int
    figures: tuple[Figure, ...]
    kinds: tuple[KindErrors, ...]
    skipped: tuple[str, ...] = ()

    @property
    def overall(self) -> KindErrors:
        """Errors of all rows."""
        return self.kinds[0]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that ``loadmaster calibrate --json`` prints."""
        return {
            "target": self.base,
            "measured": self.measured,
            "sha256": self.sha256,
            "rows": self.rows,
            "label": "calibrated",
            "figures": [asdict(figure) for figure in self.figures],
            "errors": [asdict(kind) for kind in self.kinds],
            "skipped": list(self.skipped),
        }
