"""Baselines by name; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.arguments import require_known
from loadmaster.core.errors import PlacementError
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.strategies.result import BaselineResult

_HOMES = {
    "all-fast": "all_fast",
    "all-slow": "all_slow",
    "first-touch": "first_touch",
    "2lm": "memory_mode",
    "lru": "lru",
    "largest-first": "largest_first",
    "intervals": "intervals",
}

NAMES = tuple(_HOMES)


def baseline(name: str, sequence: KernelSequence, limits: NDArray[np.int64]) -> BaselineResult:
    """Simulate one of ``NAMES`` with ``limits`` bytes of fast memory while each kernel runs, shape (kernels,).

    All but ``all-fast`` keep the limits.

    Raises
    ------
    CapacityError
        If the strategy cannot keep the limits.
    PlacementError
        If there is no baseline of that name, or the machine cannot have it.
    """
    require_known("baseline", name, NAMES, PlacementError)
    if np.shape(limits) != (len(sequence.kernels),):
        raise PlacementError(f"limits have shape {np.shape(limits)}: give one for each of the {len(sequence.kernels)} kernels")
    run: Callable[[KernelSequence, NDArray[np.int64]], BaselineResult] = import_module(
        f"loadmaster.placement.strategies.{_HOMES[name]}"
    ).run
    return run(sequence, np.asarray(limits, dtype=np.int64))
