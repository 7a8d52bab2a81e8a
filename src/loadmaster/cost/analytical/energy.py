"""Energy, power and area of a core from published figures of 45 nm silicon: estimates, good for
comparing, not for signing off.

Sources:

- M. Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014, 45 nm at 0.9
  V. Energy in pJ: integer addition 0.03 (8 bits) and 0.1 (32), floating-point addition 0.4 (16) and
  0.9 (32), integer multiplication 0.2 (8), floating-point multiplication 1.1 (16) and 3.7 (32); 64
  bits from an SRAM of 8 KiB 10, of 32 KiB 20, of 1 MiB 100; 64 bits from DRAM 1300 to 2600, of
  which the lower is taken. Area in square micrometres: integer addition 36 and 137, floating-point
  addition 1360 and 4184, multiplication 282, 1640 and 7700.
- Y.-H. Chen, J. Emer, V. Sze, "Eyeriss", ISCA 2016: moving a word between array elements costs a
  third of fetching it from the global buffer (2 to 6, relative to a multiply-accumulate), which has
  108 KiB there.
- K. Mistry et al., IEDM 2007: an SRAM cell of 45 nm takes 0.346 square micrometres.

Between Horowitz's sizes of SRAM the energy is interpolated in the logarithms, beyond them it grows
with the square root of the size. A multiply-accumulate sums in 32 bits: integers for 8-bit factors,
floating point for wider ones. Left out: leakage, clocks, control, and what an idle core takes; and
for area everything but multipliers, adders and memory cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.arrays import Floats, Int32s, Mask, column_of, grouped_sums
from loadmaster.core.errors import TargetError
from loadmaster.core.units import FEMTOJOULES, PICOSECONDS
from loadmaster.cost.analytical.nests import WIDTHS, width_of
from loadmaster.cost.base import JobTable
from loadmaster.targets.hardware import Core, Memory, Style, Target
from loadmaster.workloads.job import Job


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
    :func:`~loadmaster.cost.base.job_times`."""

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
        rows = np.arange(len(self.table.operand_job))
        chosen = core[self.table.operand_job]
        per_byte = self._per_byte(np.array(self.rates.buffers, dtype=np.float64)[chosen], used)
        moving = float((self.table.moved[rows, chosen] * per_byte).sum())
        inside = float(self.table.energy[np.arange(len(core)), core].sum()) * FEMTOJOULES
        return (
            round(inside + moving) + copied * sum(self.rates.memories) + self.rates.static(makespan)
        )

    def _per_byte(self, buffer: Floats, used: Mask) -> Floats:
        """Return femtojoules for each byte of every operand row, by the memories that it uses."""
        rates = zip(used, self.rates.memories, strict=False)
        return np.asarray(sum(rows * (buffer + rate) for rows, rate in rates))


_PICO = 1e-12
_NAMES = {8: "int8", 16: "fp16", 32: "fp32"}
_MAC = {8: 0.2 + 0.1, 16: 1.1 + 0.9, 32: 3.7 + 0.9}
_ADD = {8: 0.03, 16: 0.4, 32: 0.9}
_MAC_AREA = {8: 282 + 137, 16: 1640 + 4184, 32: 7700 + 4184}
_SRAM_BYTES = (8 * 2**10, 32 * 2**10, 2**20)
_SRAM = (10.0, 20.0, 100.0)
_WORD = 8
_DRAM = 1300.0
_EYERISS_BUFFER = 108 * 2**10
_CELL_AREA = 0.346
_SQUARE_MILLIMETRE = 1e6
"""Square micrometres in a square millimetre."""


def mac_energy(bits: int) -> float:
    """Joules of one multiply-accumulate of 8, 16 or 32 bits."""
    return _MAC[bits] * _PICO


@cache
def sram_energy(size: int) -> float:
    """Joules of reading or writing one byte of an SRAM of ``size`` bytes; 0 for an SRAM of no
    bytes."""
    if size == 0:
        return 0.0
    log, sizes = np.log(size), np.log(_SRAM_BYTES)
    inside = float(np.interp(log, sizes, np.log(_SRAM)))
    beyond = log - float(np.clip(log, sizes[0], sizes[-1]))
    return float(np.exp(inside + beyond / 2)) / _WORD * _PICO


def network_energy() -> float:
    """Joules of moving one byte over a core's on-chip network."""
    return sram_energy(_EYERISS_BUFFER) * 2 / 6


def dram_energy() -> float:
    """Joules of moving one byte from or to main memory."""
    return _DRAM / _WORD * _PICO


def array_energy(core: Core, bits: int) -> float:
    """Joules of one multiply-accumulate with its local accesses: two factors are read, a partial
    sum is read and written."""
    size = 0 if core.style is Style.ROOFLINE else core.local_buffer
    local = core.energy.get("local", sram_energy(size))
    return (
        core.energy.get(f"mac_{_NAMES[bits]}", mac_energy(bits))
        + (2 * bits / 8 + 2 * core.accumulator) * local
    )


def lane_energy(core: Core, bits: int) -> float:
    """Joules of one scalar operation of 8, 16 or 32 bits on a core; by default, of an addition."""
    return core.energy.get(f"scalar_{_NAMES[bits]}", _ADD[bits] * _PICO)


def buffer_energy(core: Core) -> float:
    """Joules of reading or writing one byte of a core's private memory."""
    return core.energy.get("buffer", sram_energy(core.buffer))


def delivery_energy(core: Core) -> float:
    """Joules of moving one byte between a core's private memory and its array."""
    return buffer_energy(core) + core.energy.get(
        "network", 0.0 if core.style is Style.ROOFLINE else network_energy()
    )


def refill_energy(core: Core, main: Memory) -> float:
    """Joules of moving one byte between main memory and a core's private memory."""
    return _main_energy(main) + buffer_energy(core)


def energy_rates(target: Target) -> EnergyRates:
    """Energy rates of the target; where it names none, those of DRAM for main memory and of an SRAM
    of its size for the others."""
    main, *others = target.memories
    joules = [_main_energy(main)] + [
        sram_energy(memory.capacity) if memory.energy is None else memory.energy
        for memory in others
    ]
    return EnergyRates(
        memories=tuple(map(_femtojoules, joules)),
        buffers=tuple(_femtojoules(buffer_energy(core)) for core in target.cores),
        static_power=target.static_power,
    )


def _main_energy(main: Memory) -> float:
    """Return joules for each byte of main memory."""
    return dram_energy() if main.energy is None else main.energy


def _femtojoules(joules: float) -> int:
    """Return joules as whole femtojoules."""
    return round(joules * FEMTOJOULES)


@validate_arguments(TargetError)
def peak_power(core: Core, bits: int = 8) -> float:
    """Watts of a core whose array is busy in every cycle, without data movement beyond the local
    buffers.

    Parameters
    ----------
    core : Core
        Any core, a roofline one included.
    bits : int
        8, 16 or 32.
    """
    return (
        core.rows * core.columns * core.macs_per_cycle[bits] * core.clock * array_energy(core, bits)
    )


@validate_arguments(TargetError)
def area(of: Core | Target) -> float:
    """Square millimetres of arithmetic and memory cells: of one core, or of a target's cores and
    fast memory.

    Each element has units of its own for every width, as many as its rate of multiply-accumulates
    needs. Main memory is another chip.
    """
    if isinstance(of, Target):
        return sum(map(area, of.cores)) + 8 * of.room * _CELL_AREA / _SQUARE_MILLIMETRE
    elements = of.rows * of.columns
    arithmetic = elements * sum(_MAC_AREA[bits] * rate for bits, rate in of.macs_per_cycle.items())
    cells = 8 * (of.buffer + elements * of.local_buffer)
    return (arithmetic + cells * _CELL_AREA) / _SQUARE_MILLIMETRE


class JobWork:
    """Work of every job, the same on all cores; ``width`` is an index into
    :data:`~loadmaster.cost.analytical.nests.WIDTHS`."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.macs = column_of(jobs, "macs")
        self.elements = column_of(jobs, "elements")
        self.width = np.array([WIDTHS.index(width_of(job.bits)) for job in jobs], dtype=np.int64)


def inside_energy(core: Core, amounts: JobWork, delivered: Floats) -> Floats:
    """Joules of every job in a core to whose array ``delivered`` bytes go, shape (jobs,); without
    operands over the core's port."""
    per_mac = np.array([array_energy(core, width) for width in WIDTHS])[amounts.width]
    per_element = np.array([lane_energy(core, width) for width in WIDTHS])[amounts.width]
    return np.asarray(
        amounts.macs * per_mac + amounts.elements * per_element + delivered * delivery_energy(core)
    )
