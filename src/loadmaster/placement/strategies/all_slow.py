"""Everything in the slow memory."""

from __future__ import annotations

from loadmaster.core.arrays import Ints
from loadmaster.core.errors import CapacityError
from loadmaster.placement.decisions import TensorPlacement
from loadmaster.placement.sequence import KernelSequence, must_be_fast
from loadmaster.placement.strategies.result import BaselineResult, fitting_algorithms, timed


def run(sequence: KernelSequence, limits: Ints) -> BaselineResult:
    """Use every operand in place; `CapacityError` names the first that cannot be."""
    for kernel, needed in zip(sequence.kernels, must_be_fast(sequence), strict=True):
        if needed:
            raise CapacityError(
                f"all-slow does not fit: kernel {kernel.name!r} needs tensor"
                f" {sequence.tensors[min(needed)].name!r} in the fast memory"
            )
    algorithms, _ = fitting_algorithms(sequence, limits)
    return timed(sequence, TensorPlacement((), (), algorithms))


BASELINE = run
