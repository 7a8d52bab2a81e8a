"""Hot kernels in C++; the interpreter lock is released while they run. Malformed arrays raise ValueError."""

import numpy as np
from numpy.typing import NDArray

def replay(
    duration: NDArray[np.int64],
    demand: NDArray[np.float64],
    links: int,
    resource: NDArray[np.int32],
    resources: int,
    order: NDArray[np.int64],
    first: NDArray[np.int64],
    next: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], int]:
    """Start and end of every task (-1: never ran) and time of every event, in picoseconds; use of every demand column from
    each event on; and how many tasks completed.

    Only the first ``links`` columns of ``demand`` hold tasks back; the others are metered.
    """

def dispatch(
    priority: NDArray[np.float64],
    duration: NDArray[np.int64],
    demand: NDArray[np.float64],
    first: NDArray[np.int64],
    next: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
    """Core of every task, tasks in the order in which they were started, and the makespan. Durations are picoseconds."""
