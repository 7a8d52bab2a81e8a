"""What commands print of a ``.tflite`` file with ``--json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.allocation.problem import AllocationJson
from loadmaster.core.json_object import ABSENT
from loadmaster.core.registry import Status
from loadmaster.integrations.tflite.interpreter import Measured


@dataclass(frozen=True)
class AliveTensor:
    """A tensor or scratch buffer, and its bytes."""

    name: str
    """Name of the tensor or buffer."""
    bytes: int
    """Size in bytes."""


@dataclass(frozen=True)
class OperatorPeak:
    """An operator, and what is alive while it runs, the largest first."""

    operator: str
    """Its number and kind."""
    bytes: int
    """Bytes that are alive while it runs."""
    tensors: tuple[AliveTensor, ...]
    """What is alive, the largest first."""


@dataclass(frozen=True)
class Remedy:
    """What was tried, the option that asks for it, and the head that came of it; ``work`` counts
    multiply-accumulates over those of the network."""

    what: str
    """What it is."""
    option: str
    """The option of `export tflite` that asks for it."""
    head: int
    """Bytes of what is planned, with it."""
    work: float = 1.0
    """Ratio of multiply-accumulates to those of the file as it was."""


@dataclass(frozen=True)
class AllocateJson(AllocationJson):
    """A packing of buffers in one memory. Offsets are in the file that `--out` writes."""

    VERSION = 1
    head_before: int = ABSENT
    """Bytes that TFLM takes without a plan."""
    peaks: Sequence[OperatorPeak] = ABSENT
    """Operators at which the most bytes are alive the fullest first. Only for a `.tflite` file, as
    are `remedies`, `no_bands` and `head_before`."""
    remedies: Sequence[Remedy] = ABSENT
    """What was tried against the peak."""
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
    """What bands offer."""

    head_at_least: int
    """Bytes of the head at least."""
    work: float
    """Ratio of multiply-accumulates to those of the file as it was."""
    time: float
    """Ratio of the time to that of the file as it was, estimated for TFLM's reference kernels."""
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
    """Bytes of what is planned, without this plan."""
    head: int
    """Bytes of what is planned, with this plan."""
    lower_bound: int
    """Bytes that no plan can do without."""
    tensors: int
    """Tensors with addresses."""
    in_place: int
    """Number of results that lie where an operand lay."""
    fixed: int
    """Tensors that keep the address that the file has for them."""
    scratch: str
    """Where scratch buffers are known from."""
    scratch_buffers: Sequence[AliveTensor]
    """Scratch buffers."""
    growth_at_most: int
    """If scratch is not known: bytes that the arena may take beyond what it takes without a plan,
    at most."""
    measured_before: Measured | None
    """The arena that was measured without this plan; null if it was not."""
    measured: Measured | None
    """The arena that was measured with this plan; null if it was not."""
    work: float
    """Ratio of multiply-accumulates to those of the file as it was; above 1 where bands repeat
    some."""
    time: float
    """Ratio of the time to that of the file as it was, estimated for TFLM's reference kernels."""
    bands: Sequence[PartJson]
    """Parts of the network that run in bands of rows."""
    peaks: Sequence[OperatorPeak]
    """Operators at which the most bytes are alive in the file as it was, the fullest first; none
    for a file in bands without `--curve`."""
    remedies: Sequence[Remedy]
    """What was tried against the peak."""
    no_bands: str | None
    """Why the file cannot be rewritten in bands; null if it can."""
    reason: str | None
    """Why nothing was written, if the arena that was asked for is too small; else null."""
    front: Sequence[ChoiceJson]
    """With `--curve`: what bands offer."""
