"""The result of a baseline, and functions that several baselines use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.errors import CapacityError
from loadmaster.placement.decisions import TensorPlacement, fast_bytes
from loadmaster.placement.sequence import KernelSequence, least_bytes, must_be_fast
from loadmaster.placement.timing import moved_bytes, time_moves


@dataclass(frozen=True)
class BaselineResult:
    """Seconds of one step, bytes that were copied, the most bytes of fast memory in use, and the
    placement if the strategy is one."""

    seconds: float
    moved_bytes: int
    peak_fast: int
    placement: TensorPlacement | None


def timed(sequence: KernelSequence, placement: TensorPlacement) -> BaselineResult:
    """Make the result of a strategy that gives a placement.

    Raises `CapacityError` naming a kernel that was measured to be impossible with its operands
    where they are.
    """
    timeline = time_moves(sequence, placement)
    if math.isinf(timeline.total):
        kernel = sequence.kernels[int(np.isinf(timeline.kernel_end).argmax())]
        raise CapacityError(
            f"kernel {kernel.name!r} cannot run with its operands in the memories where this"
            " strategy leaves them"
        )
    peak = int(fast_bytes(sequence, placement).max(initial=0))
    return BaselineResult(timeline.total, moved_bytes(sequence, placement), peak, placement)


def fitting_algorithms(sequence: KernelSequence, limits: Ints) -> tuple[tuple[int, ...], Ints]:
    """Each kernel's first algorithm, or the fastest that leaves room for what must be fast; and the
    bytes left beside its workspace.

    Raises `CapacityError` naming a kernel for which no algorithm does.
    """
    chosen, room = [], limits.copy()
    for k, (kernel, needed) in enumerate(
        zip(sequence.kernels, must_be_fast(sequence), strict=True)
    ):
        free = int(limits[k]) - sum(int(sequence.sizes[t]) for t in needed)
        fitting = [
            a for a, algorithm in enumerate(kernel.algorithms) if algorithm.workspace <= free
        ]
        if not fitting:
            raise CapacityError(
                f"kernel {kernel.name!r} needs {least_bytes(sequence)[k]} bytes of fast memory, but"
                f" its limit is {int(limits[k])}"
            )
        algorithm = (
            0 if 0 in fitting else min(fitting, key=lambda a: kernel.seconds_within(False, a))
        )
        chosen.append(algorithm)
        room[k] -= kernel.algorithms[algorithm].workspace
    return tuple(chosen), room


def does_not_fit(sequence: KernelSequence, kernel: int, strategy: str) -> CapacityError:
    """Make the error of a strategy that finds no room while a kernel runs."""
    return CapacityError(
        f"{strategy} does not fit: the limit is exceeded while kernel"
        f" {sequence.kernels[kernel].name!r} runs"
    )
