"""Scratch buffers, which kernels ask for beside tensors and for which the format has no place.

TFLM puts them around the planned tensors. How many bytes they take depends on the library of
kernels, so it is measured with TFLM's interpreter (its reference kernels) or read from the log of a
build for the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadmaster.integrations.tflite.lifetimes import Span


@dataclass(frozen=True, slots=True)
class ScratchBuffer:
    """Bytes, rounded up, that an operator needs from its first run to its last."""

    name: str
    bytes: int
    span: Span


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch buffers of a model, and where they are known from: ``probed``, a ``log``, or not at
    all. ``bounds``: some are bounds, not sizes."""

    buffers: tuple[ScratchBuffer, ...]
    source: Literal["probed", "log", "unknown"]
    bounds: bool = False

    @property
    def known(self) -> bool:
        """Whether somebody has looked."""
        return self.source != "unknown"


UNKNOWN = Scratch((), "unknown")
