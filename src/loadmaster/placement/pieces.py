"""Tensors in pieces: where an operand may have pages in both memories, each piece is a tensor of
its own, with its share of the seconds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from loadmaster.placement.decisions import Division
from loadmaster.placement.sequence import Kernel, KernelSequence, Operand, StoredTensor


def divisible(sequence: KernelSequence) -> list[bool]:
    """Whether each tensor may be divided: no kernel that uses it was measured, as nobody measured
    it with tensors in both memories."""
    measured = {
        operand.tensor
        for kernel in sequence.kernels
        if kernel.measured is not None
        for operand in kernel.operands
    }
    return [bool(sequence.page) and t not in measured for t in range(len(sequence.tensors))]


def divide(sequence: KernelSequence, cuts: Sequence[Sequence[int]]) -> Division:
    """Divide each tensor at these bytes, ascending, inside of it, multiples of the page. O(tensors
    + pieces of operands)."""
    tensors: list[StoredTensor] = []
    of: list[int] = []
    begins: list[int] = []
    first = [0]
    for t, (tensor, own) in enumerate(zip(sequence.tensors, cuts, strict=True)):
        for begin, end in itertools.pairwise((0, *own, tensor.bytes)):
            name = f"{tensor.name}[{begin}:{end}]" if own else tensor.name
            tensors.append(StoredTensor(name, end - begin, tensor.kind))
            of.append(t)
            begins.append(begin)
        first.append(len(tensors))

    def pieces(kernel: Kernel) -> Kernel:
        return replace(
            kernel,
            operands=tuple(piece for operand in kernel.operands for piece in shares(operand)),
        )

    def shares(operand: Operand) -> list[Operand]:
        numbers = range(first[operand.tensor], first[operand.tensor + 1])
        if len(numbers) == 1:
            return [replace(operand, tensor=numbers[0])]
        total = sequence.tensors[operand.tensor].bytes
        parts = [(n, tensors[n].bytes / total) for n in numbers]
        return [
            Operand(
                n,
                operand.read,
                operand.write,
                operand.fast_seconds * part,
                operand.slow_seconds * part,
            )
            for n, part in parts
        ]

    divided = replace(
        sequence, tensors=tuple(tensors), kernels=tuple(map(pieces, sequence.kernels))
    )
    return Division(sequence, divided, tuple(of), tuple(begins))
