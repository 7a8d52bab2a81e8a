"""Tensors in pieces: where an operand may have pages in both memories, each piece is a tensor of
its own, with its share of the seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadmaster.placement.decisions import DividedSequence
from loadmaster.placement.sequence import KernelOperand, KernelSequence, StoredTensor


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


def divide(sequence: KernelSequence, cuts: Sequence[Sequence[int]]) -> DividedSequence:
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

    def shares(operand: KernelOperand) -> Iterator[KernelOperand]:
        """Yield the operands of the pieces of a tensor, each with its share of the times."""
        total = sequence.tensors[operand.tensor].bytes
        for n in range(first[operand.tensor], first[operand.tensor + 1]):
            part = tensors[n].bytes / total if total else 1.0
            fast, slow = operand.fast_seconds * part, operand.slow_seconds * part
            yield replace(operand, tensor=n, fast_seconds=fast, slow_seconds=slow)

    kernels = tuple(
        replace(kernel, operands=tuple(itertools.chain(*map(shares, kernel.operands))))
        for kernel in sequence.kernels
    )
    divided = replace(sequence, tensors=tuple(tensors), kernels=kernels)
    return DividedSequence(sequence, divided, tuple(of), tuple(begins))
