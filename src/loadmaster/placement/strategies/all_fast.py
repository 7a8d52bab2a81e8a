"""Everything in the fast memory, whatever the limit: the time to compare with."""

from __future__ import annotations

from loadmaster.core.arrays import Ints
from loadmaster.placement.decisions import all_fast
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.strategies.result import BaselineResult, timed


def run(sequence: KernelSequence, limits: Ints) -> BaselineResult:
    """Ignore the limits."""
    return timed(sequence, all_fast(sequence))


BASELINE = run
