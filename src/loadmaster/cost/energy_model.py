"""Energy of decisions: work inside cores, bytes over ports and links, and the machine's static
power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Int32s, Mask, grouped_sums
from loadmaster.core.units import FEMTOJOULES, PICOSECONDS
from loadmaster.cost.job_times import JobTable


@dataclass(frozen=True)
class EnergyRates:
    """Femtojoules per byte over the link of each memory and through each core's private buffer;
    static power in watts.

    A transfer takes the energy of both of its ends: ``memories[m] + buffers[c]`` between memory
    ``m`` and core ``c``, and the sum of two memories' for a copy.
    """

    memories: tuple[int, ...]
    buffers: tuple[int, ...]
    static_power: float

    def static(self, picoseconds: int) -> int:
        """Femtojoules of static power over a time."""
        return round(self.static_power * (FEMTOJOULES // PICOSECONDS) * picoseconds)


@dataclass(frozen=True, eq=False)
class EnergyModel:
    """Energy of jobs by the memories that each row of the job table uses, as in
    :func:`~loadmaster.cost.job_times.job_times`."""

    table: JobTable
    rates: EnergyRates

    def of_jobs(self, used: Mask) -> Floats:
        """Femtojoules of every job on every core, shape (jobs, cores). O(operands x cores)."""
        buffers = np.array(self.rates.buffers, dtype=np.float64)
        per_byte = self._per_byte(buffers[None, :], used[:, :, None])
        inside = self.table.energy * FEMTOJOULES
        job = np.concatenate([np.arange(len(inside)), self.table.operand_job])
        return grouped_sums(job, np.concatenate([inside, self.table.moved * per_byte]), len(inside))

    def of_plan(self, core: Int32s, used: Mask, copied: int, makespan: int) -> int:
        """Femtojoules of jobs on their cores, of ``copied`` bytes between the memories, and of a
        time in picoseconds. O(operands)."""
        rows, chosen = np.arange(len(self.table.operand_job)), core[self.table.operand_job]
        per_byte = self._per_byte(np.array(self.rates.buffers, dtype=np.float64)[chosen], used)
        moving = float((self.table.moved[rows, chosen] * per_byte).sum())
        inside = float(self.table.energy[np.arange(len(core)), core].sum()) * FEMTOJOULES
        return (
            round(inside + moving) + copied * sum(self.rates.memories) + self.rates.static(makespan)
        )

    def _per_byte(self, buffer: Floats, used: Mask) -> Floats:
        rates = zip(used, self.rates.memories, strict=False)
        return np.asarray(sum(rows * (buffer + rate) for rows, rate in rates))
