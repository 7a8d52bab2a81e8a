"""The shapes that a core's array can take: its own, or for a flexible array all shapes of as many
elements."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.targets.hardware import Core


def shapes_of(core: Core) -> tuple[Floats, Floats]:
    """Return rows and columns of each shape, arrays of shape (shapes,), fewest rows first."""
    if not core.flexible:
        return np.array([float(core.rows)]), np.array([float(core.columns)])
    return _factors(core.rows * core.columns)


@lru_cache(maxsize=32)
def _factors(elements: int) -> tuple[Floats, Floats]:
    small = np.arange(1, isqrt(elements) + 1)
    small = small[elements % small == 0]
    rows = np.unique(np.concatenate([small, elements // small]))
    return rows.astype(np.float64), (elements // rows).astype(np.float64)
