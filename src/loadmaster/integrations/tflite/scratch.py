"""Scratch buffers, which kernels ask for beside tensors and for which the format has no place.

TFLM puts them around the planned tensors. How many bytes they take depends on the library of
kernels, so it is measured with TFLM's interpreter (its reference kernels) or read from the log of a
build for the target: tensors in the order of the file, then scratch buffers in the order in which
kernels ask for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadmaster.core.errors import ModelError
from loadmaster.integrations.dumps.readers.tflm_log import logged_plans
from loadmaster.integrations.tflite.lifetimes import Lifetimes, Span


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


def read_memory_log(path: Path, found: Lifetimes) -> Scratch:
    """Read the last plan in a log.

    Raises
    ------
    AllocationError
        If the file cannot be read or holds no plan.
    ModelError
        If the plan is one of another model.
    """
    plan, tensors = logged_plans(path)[-1], found.tensors
    if len(plan) < len(tensors):
        raise ModelError(
            f"{path}: has {len(plan)} buffers, but the model has {len(tensors)} tensors to plan: it"
            " is of another model"
        )
    for line, tensor in zip(plan, tensors, strict=False):
        if (line.size, (line.first, line.last)) != (tensor.bytes, tensor.span):
            raise ModelError(
                f"{path}: {line.name} has {line.size} bytes in scopes {line.first} to {line.last},"
                f" but tensor {tensor.name!r} {tensor.bytes} in {tensor.span[0]} to"
                f" {tensor.span[1]}: the log is of another model"
            )
    rest = [
        ScratchBuffer(f"scratch {number}", line.size, (line.first, line.last))
        for number, line in enumerate(plan[len(tensors) :], len(tensors))
        if line.size
    ]
    return Scratch(tuple(rest), "log")
