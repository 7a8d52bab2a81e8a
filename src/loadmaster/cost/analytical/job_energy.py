"""Energy of jobs inside a core: arithmetic, local buffers, and the network that feeds the array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.energy import array_energy, delivery_energy, lane_energy
from loadmaster.cost.analytical.nests import WIDTHS, width_of
from loadmaster.targets.hardware import Core
from loadmaster.workloads.job import Job


class Amounts:
    """Work of every job, the same on all cores; ``width`` is an index into
    :data:`~loadmaster.cost.analytical.nests.WIDTHS`."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.macs = np.array([job.macs for job in jobs], dtype=np.float64)
        self.elements = np.array([job.elements for job in jobs], dtype=np.float64)
        self.width = np.array([WIDTHS.index(width_of(job)) for job in jobs], dtype=np.int64)


def inside_energy(core: Core, amounts: Amounts, delivered: Floats) -> Floats:
    """Joules of every job in a core to whose array ``delivered`` bytes go, shape (jobs,); without
    operands over the core's port."""
    per_mac = np.array([array_energy(core, width) for width in WIDTHS])[amounts.width]
    per_element = np.array([lane_energy(core, width) for width in WIDTHS])[amounts.width]
    return np.asarray(
        amounts.macs * per_mac + amounts.elements * per_element + delivered * delivery_energy(core)
    )
