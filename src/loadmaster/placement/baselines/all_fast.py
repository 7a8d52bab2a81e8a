"""Everything in the fast memory, whatever the limit: the time to compare with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.kernel_sequence import KernelSequence
from loadmaster.placement.baselines.result import BaselineResult, timed
from loadmaster.tensor_placement import all_fast


def run(sequence: KernelSequence, limits: NDArray[np.int64]) -> BaselineResult:
    """Ignore the limits."""
    return timed(sequence, all_fast(sequence))
