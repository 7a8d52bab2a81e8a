"""The records that commands print for a ``.tflite`` file with ``--json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.allocation.problem import AllocationJson
from loadmaster.core.json_object import ABSENT
from loadmaster.core.registry import Status
from loadmaster.integrations.tflite.interpreter import ArenaBytes


@dataclass(frozen=True)
class AliveTensor:
    """A tensor or scratch buffer, and its bytes."""

    name: str
    """Name of the tensor or buffer."""
    bytes: int
    """Size in bytes."""


@dataclass(frozen=True)
class OperatorPeak:
    """An operator at the peak, with the tensors and scratch buffers alive while it runs."""

    operator: str
    """Number and kind of the operator."""
    bytes: int
    """Bytes alive while the operator runs."""
    tensors: tuple[AliveTensor, ...]
    """Tensors and scratch buffers alive while the operator runs, largest first."""


@dataclass(frozen=True)
class Remedy:
    """A change that was tried to make the arena smaller, and its effect."""

    what: str
    """Description of the change."""
    option: str
    """The option of `export tflite` that makes the change."""
    head: int
    """Bytes of the arena's head with the change."""
    work: float = 1.0
    """Ratio of multiply-accumulates to those of the original file."""


@dataclass(frozen=True)
class AllocateJson(AllocationJson):
    """A packing of buffers in one memory. Offsets are in the file that `--out` writes."""

    VERSION = 1
    head_before: int = ABSENT
    """Bytes of the arena's head without a plan."""
    peaks: Sequence[OperatorPeak] = ABSENT
    """Operators at the peak, most bytes first. Only for a `.tflite` file, as are `remedies`,
    `no_bands` and `head_before`."""
    remedies: Sequence[Remedy] = ABSENT
    """Changes that were tried to lower the peak."""
    no_bands: str | None = ABSENT
    """Why the file cannot be rewritten in bands; null if it can."""


@dataclass(frozen=True)
class PartJson:
    """A part that runs in bands."""

    first: int
    """Index of the first operator."""
    last: int
    """Index of the last operator."""
    bands: int
    """Number of bands."""


@dataclass(frozen=True)
class ChoiceJson:
    """A choice of regions in bands."""

    head_at_least: int
    """Lower bound in bytes of the arena's head."""
    work: float
    """Ratio of multiply-accumulates to those of the original file."""
    time: float
    """Ratio of the time to that of the original file, estimated for TFLM's reference kernels."""
    bands: int
    """Number of bands of all parts."""


@dataclass(frozen=True)
class ExportJson:
    """A plan of the tensor arena of TensorFlow Lite for Microcontrollers."""

    VERSION = 1
    model: str
    """Name of the model."""
    status: Status
    """How good the answer is: `optimal` is proven, `feasible` holds but is not proven to be the
    best."""
    head_before: int
    """Bytes of the arena's head without this plan."""
    head: int
    """Bytes of the arena's head with this plan."""
    lower_bound: int
    """Lower bound in bytes of the head, for all plans."""
    tensors: int
    """Number of tensors with addresses."""
    in_place: int
    """Number of results at the address of an operand."""
    fixed: int
    """Number of tensors that keep their address in the file."""
    scratch: str
    """Source of the sizes of scratch buffers."""
    scratch_buffers: Sequence[AliveTensor]
    """Scratch buffers."""
    growth_at_most: int
    """If scratch is unknown: most bytes by which the arena may be larger than without a plan."""
    measured_before: ArenaBytes | None
    """The arena measured without this plan; null if not measured."""
    measured: ArenaBytes | None
    """The arena measured with this plan; null if not measured."""
    work: float
    """Ratio of multiply-accumulates to those of the original file; above 1 if bands repeat some."""
    time: float
    """Ratio of the time to that of the original file, estimated for TFLM's reference kernels."""
    bands: Sequence[PartJson]
    """Parts of the network that run in bands of rows."""
    peaks: Sequence[OperatorPeak]
    """Operators at the peak of the original file, most bytes first; none for a file in bands
    without `--curve`."""
    remedies: Sequence[Remedy]
    """Changes that were tried to lower the peak."""
    no_bands: str | None
    """Why the file cannot be rewritten in bands; null if it can."""
    reason: str | None
    """Why no file was written, if the requested arena is too small; else null."""
    front: Sequence[ChoiceJson]
    """With `--curve`: the choices of regions in bands."""
