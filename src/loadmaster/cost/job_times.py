"""How long a job takes, given where its operands are: the one place that turns bytes over links into seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.errors import PlanError
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.job_table import JobTable
from loadmaster.targets.hardware import Target

_LONGEST = 2.0**53


@dataclass(frozen=True)
class JobTimes:
    """What each job does to time and links on each core, when it runs alone.

    It lasts ``duration[j, c]`` picoseconds and uses ``demand[j, c, l]`` of link ``l``'s time, for ``rate[j, c, l]`` bytes/s.
    Links are the main memory's, then the fast memory's if there is one.
    """

    duration: NDArray[np.int64]
    demand: NDArray[np.float64]
    rate: NDArray[np.float64]


def job_times(
    table: JobTable,
    target: Target,
    read_fast: NDArray[np.bool_],
    write_fast: NDArray[np.bool_],
    write_main: NDArray[np.bool_],
    streamed: NDArray[np.int64] | None = None,
) -> JobTimes:
    """Times of all jobs for tensors that are read from the fast memory (else main) and written to the fast, the main, or both.

    ``streamed`` are rows of the table that are read from main memory all the same.

    Arithmetic and transfers overlap: a job lasts as long as the slowest of them, in whole picoseconds and
    at least one. O(operands x cores).
    """
    # As `job_times` in src/native/joint/admission.cpp, to the last bit: tests/test_twins.py holds the two together.
    write = table.operand_write
    uses_main, uses_fast = memories_used(table, read_fast, write_fast, write_main, streamed)
    seconds, volumes = [], []
    for memory, used in zip(target.memories, (uses_main, uses_fast), strict=False):
        per_byte = np.where(write, 1.0 / memory.write_bandwidth, 1.0 / memory.read_bandwidth) * used
        link, volume = np.zeros_like(table.compute), np.zeros_like(table.compute)
        np.add.at(link, table.operand_job, table.moved * per_byte[:, None])
        np.add.at(volume, table.operand_job, np.where(used[:, None], table.moved, 0))
        seconds.append(link)
        volumes.append(volume)
    links = np.stack(seconds, axis=2)
    duration = whole_picoseconds(np.maximum(table.compute, links.max(axis=2)))
    seconds_each = duration[:, :, None] / PICOSECONDS
    return JobTimes(duration, links / seconds_each, np.stack(volumes, axis=2) / seconds_each)


def memories_used(
    table: JobTable,
    read_fast: NDArray[np.bool_],
    write_fast: NDArray[np.bool_],
    write_main: NDArray[np.bool_],
    streamed: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each row of the table moves bytes of the main memory, and of the fast one; arguments are those of :func:`job_times`."""
    t, write = table.operand_tensor, table.operand_write
    reads_fast = read_fast[t]
    if streamed is not None:
        reads_fast[streamed] = False
    return np.where(write, write_main[t], ~reads_fast), np.where(write, write_fast[t], reads_fast)


def whole_picoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Seconds in whole picoseconds, rounded up, at least one; a millionth of a picosecond is taken for rounding.

    Raises :class:`~loadmaster.core.errors.PlanError` where the sum of the longest of every row leaves what double precision counts exactly.
    """
    # As `whole` in src/native/joint/admission.cpp.
    if not float(seconds.max(axis=-1).sum()) * PICOSECONDS < _LONGEST:
        raise PlanError(
            "this work takes longer than 2.5 hours one job after another, the most that is planned: check bandwidths and clocks"
        )
    return np.maximum(1, np.ceil(seconds * PICOSECONDS - 1e-6).astype(np.int64))
