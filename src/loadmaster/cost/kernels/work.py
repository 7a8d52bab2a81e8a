"""Work of the kernels of a computation, the same on any machine: arithmetic and bytes, from which a
target's costs follow."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.placement.sequence import StoredTensor
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Role


@dataclass(frozen=True, slots=True)
class Amount:
    """The least bytes that a kernel moves of an operand, with its role in a loop nest and the
    nest's number (-1: in none)."""

    bytes: int
    role: Role = Role.ONCE
    nest: int = -1


@dataclass(frozen=True, slots=True)
class UsedTensor:
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
