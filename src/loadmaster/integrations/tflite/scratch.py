"""Scratch buffers, which kernels request beside their tensors; a plan in a file has no entries for
them.

TFLM places them around the planned tensors. Their sizes depend on the kernel library, so they are
measured with TFLM's interpreter (reference kernels), or read from the log of a build for the
target: first tensors in the order of the file, then scratch buffers in the order of requests.
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
    """A scratch buffer of an operator, alive from its first run to its last; ``bytes`` are rounded
    up."""

    name: str
    bytes: int
    span: Span


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch buffers of a model, and the source of their sizes; ``bounds``: some sizes are upper
    bounds."""

    buffers: tuple[ScratchBuffer, ...]
    source: Literal["probed", "log", "unknown"]
    bounds: bool = False

    @property
    def known(self) -> bool:
        """Whether the sizes are known."""
        return self.source != "unknown"


UNKNOWN = Scratch((), "unknown")


def read_memory_log(path: Path, found: Lifetimes) -> Scratch:
    """Read scratch buffers from the last plan in a log of TFLM.

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
