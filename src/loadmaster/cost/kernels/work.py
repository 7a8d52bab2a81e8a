"""What the kernels of a computation have to do on any machine: arithmetic and bytes, from which a target's costs follow."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.placement.sequence import StoredTensor
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Role


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes that a kernel must move of an operand at least, and which operand of which of its loop nests they are (-1: of none)."""

    bytes: int
    role: Role = Role.ONCE
    nest: int = -1


@dataclass(frozen=True, slots=True)
class UsedTensor:
    """A kernel's use of a tensor, by number; None where it does not read or not write it.

    A kernel that writes a part of a tensor reads it too, and moves 0 bytes for that: the rest must be there.
    """

    tensor: int
    read: Amount | None
    write: Amount | None


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One kernel: loop nests, scalar operations outside them, the width of the arithmetic in bits, and operands.

    ``outputs`` counts the elements of the tensor that the first loop nest writes; 0 if it writes none.
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
    """Kernels in execution order and tensors by number; ``notes`` are one-line remarks on what was not understood."""

    name: str
    tensors: tuple[StoredTensor, ...]
    kernels: tuple[KernelWork, ...]
    notes: tuple[str, ...] = ()
