"""Work of the kernels of a computation, the same on any machine: arithmetic and bytes, from which a
target's costs follow.

As versioned JSON, plain or gzipped, a captured step can be placed on any target, on a machine
without PyTorch.

One object with the keys ``format`` ("loadmaster kernel work"), ``version`` (1), ``name``,
``notes``, ``tensors`` and ``kernels``. A tensor is ``[name, bytes, kind]``. A kernel has ``name``,
``kind``, ``elements``, ``bits``, ``outputs``, ``nests`` and ``operands``; a nest has the extents
and strides of :class:`~loadmaster.workloads.graph.LoopNest` that are not 1. An operand is ``[number
of the tensor, what is read, what is written]``: null for nothing, else ``[bytes, role in the loop
nest, number of the nest]``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import PlacementError
from loadmaster.placement.sequence import StoredTensor
from loadmaster.placement.sequence_json import (
    lines_of,
    object_of,
    row_of,
    some,
    tensors_schema,
    text_and_whole,
    validated,
    write_text,
)
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Role


class Amount(NamedTuple):
    """The least bytes that a kernel moves of an operand, with its role in a loop nest and the
    nest's number (-1: in none)."""

    bytes: int
    role: Role = Role.ONCE
    nest: int = -1


class UsedTensor(NamedTuple):
    """A kernel's use of a tensor, by number; None where it does not read, or does not write, the
    tensor.

    A kernel that writes a part of a tensor also reads it, moving 0 bytes, because the other part
    must be there.
    """

    tensor: int
    read: Amount | None
    write: Amount | None


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One kernel: loop nests, scalar operations outside them, the width of the arithmetic in bits,
    and operands.

    ``outputs`` counts the elements of the tensor that the first loop nest writes; 0 if it writes
    none.
    """

    name: str
    kind: str
    operands: tuple[UsedTensor, ...]
    nests: tuple[LoopNest, ...]
    elements: int
    bits: int
    outputs: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all loop nests."""
        return sum(nest.macs for nest in self.nests)


@dataclass(frozen=True)
class SequenceWork:
    """Kernels in execution order and tensors by number; ``notes`` are one-line remarks on unknown
    operators."""

    name: str
    tensors: tuple[StoredTensor, ...]
    kernels: tuple[KernelWork, ...]
    notes: tuple[str, ...] = ()


FORMAT = "loadmaster kernel work"
VERSION = 1

_PLAIN = {
    field.name: getattr(LoopNest(1, 1), field.name)
    for field in fields(LoopNest)
    if field.name not in ("input", "weight", "output", "loops")
}
"""Extents of a nest, as they are where a file does not give them."""


@validate_arguments(PlacementError)
def write_work(work: SequenceWork, path: Path) -> Path:
    """Write kernel work, gzipped if the name ends in ``.gz``. The same work gives the same bytes.

    Raises :class:`~loadmaster.core.errors.OutputError` if the file cannot be written.
    """
    return write_text(work_to_text(work), path, "the work")


def work_to_text(work: SequenceWork) -> str:
    """Return the work as JSON text, one tensor or kernel a line."""
    head = {"format": FORMAT, "version": VERSION, "name": work.name, "notes": list(work.notes)}
    return lines_of(head, tensors=work.tensors, kernels=list(map(_kernel_record, work.kernels)))


def _kernel_record(kernel: KernelWork) -> dict[str, Any]:
    """Return a kernel's work as JSON; nests without fields that have the default."""
    nests = [
        {name: value for name, plain in _PLAIN.items() if (value := getattr(nest, name)) != plain}
        for nest in kernel.nests
    ]
    return {
        **{name: getattr(kernel, name) for name in ("name", "kind", "elements", "bits", "outputs")},
        "nests": nests,
        "operands": kernel.operands,
    }


def work_from_object(data: dict[str, Any], name: str) -> SequenceWork:
    """Read the work that a JSON object describes; errors call it ``name``.

    Raises
    ------
    PlacementError
        The object is of another version, or has missing, unknown, repeated or wrong fields.
    """
    work: SequenceWork = validated(data, name, FORMAT, VERSION, _schema())
    for kernel in work.kernels:
        for use in kernel.operands:
            if use.tensor >= len(work.tensors) or any(
                amount.nest >= len(kernel.nests) for amount in (use.read, use.write) if amount
            ):
                raise PlacementError(
                    f"{name}: kernel {kernel.name!r} names a tensor or a loop nest that does not"
                    " exist"
                )
    return work


@cache
def _schema() -> Any:
    """Make the schema of the file; values that contradict each other are found when kernels are
    costed."""
    from pydantic import Field

    text, whole = text_and_whole()
    extent = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
    position = Annotated[int, Field(strict=True, ge=-1, lt=2**31)]
    amount = row_of(_amount, whole, Role, position) | None
    extents = {
        name: (tuple[extent, extent] if isinstance(value, tuple) else extent, value)
        for name, value in _PLAIN.items()
    }
    kernel = object_of(
        KernelWork,
        name=text,
        kind=text,
        elements=whole,
        bits=Annotated[int, Field(strict=True, ge=1, le=2**10)],
        outputs=whole,
        nests=some(object_of(LoopNest, **extents)),
        operands=some(row_of(UsedTensor, whole, amount, amount)),
    )
    return object_of(
        SequenceWork,
        name=text,
        notes=some(text),
        tensors=tensors_schema(),
        kernels=Annotated[some(kernel), Field(min_length=1)],
    )


def _amount(size: int, role: Role, nest: int) -> Amount:
    """Return the amount of a row; one that has no role is in no nest."""
    return Amount(size, role, -1 if role is Role.ONCE else nest)
