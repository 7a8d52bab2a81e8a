"""Durations and link demands of jobs, given where their operands are: the one place that turns
bytes over links into seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask, grouped_sums
from loadmaster.core.errors import PlanError
from loadmaster.core.units import PICOSECONDS
from loadmaster.targets.hardware import Memory, Target


@dataclass(frozen=True)
class JobTable:
    """Costs of every job on every core, operand by operand; memory is O(operands x cores).

    ``compute[j, c]`` is the arithmetic time in seconds of job ``j`` on core ``c``, without
    transfers. Row ``i`` of the operand arrays belongs to job ``operand_job[i]`` and tensor instance
    ``operand_tensor[i]`` (rows are sorted by job, reads before writes): ``moved[i, c]`` bytes cross
    the core's port, refills included, and ``tile[i, c]`` bytes of the private buffer hold it.
    ``energy[j, c]`` joules, in whole femtojoules, are taken inside the core; bytes over its port
    and over memories' links come on top (:mod:`loadmaster.cost.analytical.energy`).
    """

    compute: Floats
    operand_job: Ints
    operand_tensor: Ints
    operand_write: Mask
    moved: Ints
    tile: Ints
    energy: Floats


_EXACT_PICOSECONDS = 2.0**53
"""Picoseconds that double precision counts exactly."""


@dataclass(frozen=True)
class JobTimes:
    """Duration and link demand of each job on each core when it runs alone.

    A job lasts ``duration[j, c]`` picoseconds and uses ``demand[j, c, l]`` of link ``l``'s time,
    for ``rate[j, c, l]`` bytes/s. Links are the main memory's, then the fast memory's if there is
    one.
    """

    duration: Ints
    demand: Floats
    rate: Floats


def job_times(table: JobTable, target: Target, used: Mask) -> JobTimes:
    """Compute times of all jobs; ``used[m, i]`` says whether row ``i`` of the table moves bytes of
    memory ``m``.

    Arithmetic and transfers overlap: a job lasts as long as the slowest of them, in whole
    picoseconds and at least one. O(operands x cores x memories).
    """
    # As `job_times` in src/native/joint/times.cpp, to the last bit: tests/test_twins.py holds the
    # two together.
    jobs, seconds, volumes = len(table.compute), [], []
    for memory, rows in zip(target.memories, used[:, :, None], strict=False):
        moving = link_seconds(table, memory) * rows
        seconds.append(grouped_sums(table.operand_job, moving, jobs))
        volumes.append(grouped_sums(table.operand_job, np.where(rows, table.moved, 0), jobs))
    links = np.stack(seconds, axis=2)
    duration = whole_picoseconds(np.maximum(table.compute, links.max(axis=2)))
    seconds_each = duration[:, :, None] / PICOSECONDS
    return JobTimes(duration, links / seconds_each, np.stack(volumes, axis=2) / seconds_each)


def link_seconds(table: JobTable, memory: Memory) -> Floats:
    """Seconds of a memory's link for the bytes of each row of the table on each core, were they in
    that memory; shape (rows, cores)."""
    per_byte = np.where(
        table.operand_write, 1.0 / memory.write_bandwidth, 1.0 / memory.read_bandwidth
    )
    return np.asarray(table.moved * per_byte[:, None])


def whole_picoseconds(seconds: Floats) -> Ints:
    """Durations in whole picoseconds, rounded up, at least one.

    Raises :class:`~loadmaster.core.errors.PlanError` where the sum of the longest of every row
    leaves what double precision counts exactly.
    """
    # As `whole` in src/native/joint/times.cpp; tests/test_twins.py holds the two together.
    if not float(seconds.max(axis=-1).sum()) * PICOSECONDS < _EXACT_PICOSECONDS:
        raise PlanError(
            "this work takes longer than 2.5 hours one job after another, the most that is planned:"
            " check bandwidths and clocks"
        )
    return np.maximum(1, rounded_up(seconds))


def rounded_up(seconds: Floats) -> Ints:
    """Seconds in whole picoseconds, rounded up; a millionth of a picosecond is taken for
    rounding."""
    return np.asarray(np.ceil(seconds * PICOSECONDS - 1e-6), dtype=np.int64)
