"""Everything in the fast memory, whatever the limit: the time to compare with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.placement.decisions import all_fast
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.strategies.result import BaselineResult, timed


def run(sequence: KernelSequence, limits: NDArray[np.int64]) -> BaselineResult:
    """Ignore the limits."""
    return timed(sequence, all_fast(sequence))


BASELINE = run
