"""First-touch NUMA: a tensor goes where there is room when it is first touched, and never moves.

Weights and inputs are touched before the step, in order. Memory that a tensor frees is used again.
Room that later kernels' workspace or tighter limits need counts as taken.
"""

from __future__ import annotations

from loadmaster.core.arrays import Ints
from loadmaster.placement.decisions import Stay, TensorPlacement
from loadmaster.placement.sequence import KernelSequence, must_be_fast
from loadmaster.placement.strategies.result import (
    BaselineResult,
    does_not_fit,
    fitting_algorithms,
    timed,
)


def run(sequence: KernelSequence, limits: Ints) -> BaselineResult:
    """O(tensors x kernels of a life)."""
    algorithms, room = fitting_algorithms(sequence, limits)
    first_need: dict[int, int] = {}
    for k, needed in enumerate(must_be_fast(sequence)):
        for t in needed:
            first_need.setdefault(t, k)
    stays = []
    spans = sequence.lifetimes.tolist()
    for t in sorted(range(len(spans)), key=lambda t: spans[t][0]):
        start, end = spans[t]
        size = int(sequence.sizes[t])
        if start < end and size <= int(room[start:end].min()):
            room[start:end] -= size
            stays.append(Stay(t, start, end))
        elif t in first_need:
            raise does_not_fit(sequence, first_need[t], "first-touch")
    return timed(sequence, TensorPlacement(tuple(stays), (), algorithms))


BASELINE = run
