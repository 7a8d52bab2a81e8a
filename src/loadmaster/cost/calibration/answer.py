"""The answer of a calibration: figures with what the measurements say of each, and errors before
and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from loadmaster.core.json_object import json_of
from loadmaster.core.provenance import Label


class Standing(StrEnum):
    """What the measurements say of a figure."""

    FITTED = "fitted"
    """Some rows take as long as they do because of it."""
    BOUNDED = "bounded"
    """No row is limited by it any more: the machine is at least so good."""
    KEPT = "kept"
    """The rows cannot tell: it is as the target had it."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A field of the target before and after, in the file's base unit, and how many distinct layers
    it limits."""

    field: str
    """Name of the field in the target file."""
    before: float
    """Value before, in the field's base unit."""
    after: float
    """Value after, in the field's base unit."""
    standing: Standing
    """What the measurements say of the figure: it was `fitted`, no row is limited by it any more
    (`bounded`), or they cannot tell and it was `kept`."""
    layers: int
    """Number of distinct layers of whose time the figure is a large part."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Distances of modelled from measured times: the factor between them less 1, its geometric mean
    and its median over rows; and, with its sign, the distance of their sums relative to the
    measured one."""

    mean: float
    """Factor between modelled and measured times less 1, its geometric mean over rows."""
    median: float
    """Factor between modelled and measured times less 1, its median over rows."""
    total: float
    """Distance of the sums relative to the measured one, with its sign."""


@dataclass(frozen=True, slots=True)
class KindErrors:
    """Errors of the rows of one kind of operator; ``held_out`` are those of rows that the fit had
    not seen, None where that cannot be."""

    kind: str
    """Kind of operator, or `all`."""
    rows: int
    """Number of rows of this kind."""
    before: Errors
    """Errors before the fit."""
    after: Errors
    """Errors after the fit."""
    held_out: Errors | None
    """Errors of rows that the fit had not seen; null where that cannot be."""


@dataclass(frozen=True)
class CalibrationJson:
    """A target's figures, fitted to measured times."""

    VERSION = 1
    target: str
    """Name of the target."""
    measured: str
    """Name of the file of measurements."""
    sha256: str
    """Digest of that file."""
    rows: int
    """Number of rows that were used."""
    label: Literal[Label.CALIBRATED]
    """How far the fitted figures can be trusted."""
    figures: Sequence[Fitted]
    """Every figure that calibration may change."""
    errors: Sequence[KindErrors]
    """Errors by kind of operator, most time first; `all` comes first."""
    skipped: Sequence[str]
    """What was not used, and why."""


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
    figures: tuple[Fitted, ...]
    kinds: tuple[KindErrors, ...]
    skipped: tuple[str, ...] = ()

    @property
    def overall(self) -> KindErrors:
        """Errors of all rows."""
        return self.kinds[0]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that ``loadmaster calibrate --json`` prints."""
        return json_of(
            self, CalibrationJson, target=self.base, label=Label.CALIBRATED, errors=self.kinds
        )
