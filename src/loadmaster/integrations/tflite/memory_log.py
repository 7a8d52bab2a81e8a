"""Scratch buffers from the log of a build for the target.

TFLM built with ``TF_LITE_SHOW_MEMORY_USE`` prints every planned buffer when tensors are allocated:
tensors in the order of the file, then scratch buffers in the order in which kernels ask for them,
in the sizes of the target's library of kernels.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from loadmaster.core.errors import ModelError
from loadmaster.integrations.tflite.lifetimes import UNIT, Lifetimes
from loadmaster.integrations.tflite.scratch import Scratch, ScratchBuffer

BUFFER_LINE = re.compile(
    r"\(id=(\d+)\): size=(\d+), offset=(-?\d+), first_used=(-?\d+),? last_used=(-?\d+)"
)
"""What the log says of one buffer."""
_LARGEST_LOG = 2**28


class _Logged(NamedTuple):
    """One line of the log."""

    id: int
    size: int
    offset: int
    first: int
    last: int


def read_memory_log(path: Path, found: Lifetimes) -> Scratch:
    """Read the last plan in a log.

    Raises
    ------
    ModelError
        If the file cannot be read, holds no plan, or one of another model.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_LARGEST_LOG)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}): give the log of"
            " a target's build"
        ) from None
    plan: list[_Logged] = []
    for match in BUFFER_LINE.finditer(text):
        line = _Logged(*map(int, match.groups()))
        if line.id == 0:
            plan = []
        if line.id != len(plan) or line.size % UNIT or line.last < line.first:
            raise ModelError(
                f"{path}: buffer {line.id} follows buffer {len(plan) - 1}, or is no buffer of"
                " TFLM's: the log is not whole"
            )
        plan.append(line)
    if not plan:
        raise ModelError(
            f"{path}: holds no plan: build TFLM with TF_LITE_SHOW_MEMORY_USE, and give what it"
            " prints"
        )
    if len(plan) < len(found.tensors):
        raise ModelError(
            f"{path}: has {len(plan)} buffers, but the model has {len(found.tensors)} tensors to"
            " plan: it is of another model"
        )
    for line, tensor in zip(plan, found.tensors, strict=False):
        if (line.size, (line.first, line.last)) != (tensor.bytes, tensor.span):
            raise ModelError(
                f"{path}: buffer {line.id} has {line.size} bytes in scopes {line.first} to"
                f" {line.last}, but tensor {tensor.name!r} {tensor.bytes} in {tensor.span[0]}"
                f" to {tensor.span[1]}: the log is of another model"
            )
    rest = plan[len(found.tensors) :]
    return Scratch(
        tuple(
            ScratchBuffer(f"scratch {line.id}", line.size, (line.first, line.last))
            for line in rest
            if line.size
        ),
        "log",
    )
