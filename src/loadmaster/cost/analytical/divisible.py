"""What jobs take at least when they may be cut into pieces, and the pieces shared by cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.deliveries import least_delivered
from loadmaster.cost.analytical.efficiency import efficiencies
from loadmaster.cost.analytical.job_energy import Amounts, inside_energy
from loadmaster.cost.analytical.nests import NestTable, nest_table
from loadmaster.cost.base import kinds_of
from loadmaster.targets.hardware import Style, Target
from loadmaster.workloads.job import Job


def divisible_costs(jobs: Sequence[Job], target: Target) -> tuple[Floats, Floats]:
    """Seconds and joules of every job on every core, shape (jobs, cores), at the rate of the piece that suits the core best.

    A share ``f`` of a job takes at least ``f`` times as long, whatever piece it is: where an extent of the job fills a core's array, some
    piece of it does so exactly, and where it does not, no piece fills more. What a piece does not cut (input channels, taps) is as it is.
    A share pays all of what starting a job takes, which counts once. The time of the on-chip network is left out, and flexible arrays take
    any shape. Energy counts what goes over the network at least (:func:`~loadmaster.cost.analytical.deliveries.least_delivered`).
    O(jobs x kinds of core).
    """
    nests, amounts = nest_table(jobs), Amounts(jobs)
    lanes = np.array([job.elements for job in jobs], dtype=np.float64)
    cores, position = kinds_of(target)
    seconds, joules = [], []
    for core in cores:
        per_cycle = np.array([core.macs_per_cycle[int(bits)] for bits in nests.bits])
        style = Style.ROOFLINE if core.flexible else core.style
        cycles = _CYCLES[style](nests, float(core.rows), float(core.columns)) * nests.repeats / per_cycle
        rate = core.clock * efficiencies(jobs, core)
        seconds.append(np.maximum(nests.per_job(cycles), lanes / core.lanes) / rate + core.start_up)
        joules.append(inside_energy(core, amounts, nests.per_job(least_delivered(nests, core))))
    return np.stack(seconds, axis=1)[:, position], np.stack(joules, axis=1)[:, position]


def _weight_stationary(n: NestTable, rows: float, columns: float) -> Floats:
    side_by_side = columns // np.minimum(n.c, columns)
    filled = np.maximum(np.maximum(n.groups * n.k / rows, n.groups / side_by_side), 1.0)
    return np.asarray(n.positions * n.taps * np.ceil(n.c / columns) * filled)


def _output_stationary(n: NestTable, rows: float, columns: float) -> Floats:
    return np.asarray(np.maximum(n.groups * n.k / columns, 1.0) * np.maximum(n.positions / rows, 1.0) * n.c * n.taps)


def _row_stationary(n: NestTable, rows: float, columns: float) -> Floats:
    # Output channels whose filter rows stand below each other in the array.
    channels = np.maximum(1.0, rows // np.minimum(n.r, rows))
    filled = np.maximum(n.y / columns, 1.0) * np.maximum(n.groups * n.k / channels, 1.0)
    return np.asarray(n.batch * n.x * n.s * n.c * filled * np.ceil(n.r / rows))


def _roofline(n: NestTable, rows: float, columns: float) -> Floats:
    return n.macs / (rows * columns * n.repeats)


_CYCLES: dict[Style, Callable[[NestTable, float, float], Floats]] = {
    Style.WEIGHT_STATIONARY: _weight_stationary,
    Style.OUTPUT_STATIONARY: _output_stationary,
    Style.ROW_STATIONARY: _row_stationary,
    Style.ROOFLINE: _roofline,
}
