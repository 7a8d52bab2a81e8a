"""Cycles and delivered bytes of loop nests on a core's array, in its own shape or, if it is flexible, in the best one for each nest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.cycles import array_cycles
from loadmaster.cost.analytical.delivery import delivered_bytes
from loadmaster.cost.analytical.nests import NestTable
from loadmaster.cost.analytical.shapes import shapes_of
from loadmaster.targets.hardware import Core


@dataclass(frozen=True)
class ArrayCosts:
    """``cycles`` of arithmetic and ``delivered`` bytes over the on-chip network for all repeats of each distinct nest, shape (nests,)."""

    cycles: Floats
    delivered: Floats


def array_costs(nests: NestTable, core: Core) -> ArrayCosts:
    """Compute the costs of every nest on one core.

    A flexible array takes the shape in which arithmetic and deliveries, which overlap, end first; of equals the one with the fewest
    deliveries, then the one with the fewest rows. Time and memory are O(nests x shapes).
    """
    column = nests.as_column()
    rows, columns = shapes_of(core)
    rate = np.array([core.macs_per_cycle[int(bits)] for bits in nests.bits])[:, None]
    cycles = array_cycles(column, core.style, rows, columns) / rate
    delivered = delivered_bytes(column, core.style, rows, columns, core.local_buffer)
    if len(rows) > 1:
        per_cycle = np.inf if core.noc_bandwidth is None else core.noc_bandwidth / core.clock
        ends = np.maximum(cycles, delivered / per_cycle)
        first = np.where(ends == ends.min(axis=1, keepdims=True), delivered, np.inf)
        best = np.argmin(first, axis=1)[:, None]
        cycles, delivered = (np.take_along_axis(values, best, axis=1) for values in (cycles, delivered))
    return ArrayCosts(cycles[:, 0] * nests.repeats, delivered[:, 0] * nests.repeats)
