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
    """Femtojoules per byte over the links of main and fast memory and through each core's private
    buffer; static power in watts.

    A transfer takes the energy of both of its ends: ``main + buffers[c]`` between main memory and
    core ``c``, ``main + fast`` for a copy.
    """

    main: int
    fast: int
    buffers: tuple[int, ...]
    static_power: float

    def static(self, picoseconds: int) -> int:
        """Femtojoules of static power over a time."""
        return round(self.static_power * (FEMTOJOULES // PICOSECONDS) * picoseconds)


@dataclass(frozen=True, eq=False)
class EnergyModel:
    """Energy of jobs whose operands are in main memory, the fast one, or (results) both, by rows of
    the job table."""

    table: JobTable
    rates: EnergyRates

    def of_jobs(self, uses_main: Mask, uses_fast: Mask) -> Floats:
        """Femtojoules of every job on every core, shape (jobs, cores). O(operands x cores)."""
        per_byte = self._per_byte(
            np.array(self.rates.buffers, dtype=np.float64)[None, :],
            uses_main[:, None],
            uses_fast[:, None],
        )
        inside = self.table.energy * FEMTOJOULES
        job = np.concatenate([np.arange(len(inside)), self.table.operand_job])
        return grouped_sums(job, np.concatenate([inside, self.table.moved * per_byte]), len(inside))

    def of_plan(
        self, core: Int32s, uses_main: Mask, uses_fast: Mask, copied: int, makespan: int
    ) -> int:
        """Femtojoules of jobs on their cores, of ``copied`` bytes between the memories, and of a
        time in picoseconds. O(operands)."""
        rows, chosen = np.arange(len(self.table.operand_job)), core[self.table.operand_job]
        per_byte = self._per_byte(
            np.array(self.rates.buffers, dtype=np.float64)[chosen], uses_main, uses_fast
        )
        moving = float((self.table.moved[rows, chosen] * per_byte).sum())
        inside = float(self.table.energy[np.arange(len(core)), core].sum()) * FEMTOJOULES
        return (
            round(inside + moving)
            + copied * (self.rates.main + self.rates.fast)
            + self.rates.static(makespan)
        )

    def _per_byte(self, buffer: Floats, uses_main: Mask, uses_fast: Mask) -> Floats:
        return np.asarray(
            uses_main * (buffer + self.rates.main) + uses_fast * (buffer + self.rates.fast)
        )
