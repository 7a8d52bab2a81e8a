"""What jobs take: their costs on every core, times that follow from where operands are, M3E's job
analysis table, and the protocol of cost models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT, Floats, Ints, Mask, grouped_sums
from loadmaster.core.errors import JobError, TargetError
from loadmaster.core.provenance import Provenance
from loadmaster.core.units import PICOSECONDS
from loadmaster.targets.hardware import Core, Memory, Style, Target
from loadmaster.workloads.job import Workload


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


_EXACT_PICOSECONDS = 2.0**52
"""Picoseconds that seconds in double precision tell apart, and as many again for releases."""


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

    Raises :class:`~loadmaster.core.errors.TargetError` where the sum of the longest of every row
    leaves what double precision counts exactly.
    """
    # As `whole` in src/native/joint/times.cpp; tests/test_twins.py holds the two together.
    if not float(seconds.max(axis=-1).sum()) * PICOSECONDS < _EXACT_PICOSECONDS:
        raise TargetError(
            "one job after another, each on its slowest core, this work takes longer than 75"
            " minutes, the most that is planned: check bandwidths, clocks and efficiencies, or plan"
            " fewer jobs at a time"
        )
    # A millionth of a picosecond is taken for rounding.
    return np.maximum(1, np.ceil(seconds * PICOSECONDS - 1e-6).astype(np.int64))


@dataclass(frozen=True, eq=False)
class JobAnalysis:
    """No-stall latency and bandwidth of jobs on cores (M3E, HPCA 2022).

    Attributes
    ----------
    jobs, cores
        Names; jobs in the order in which they were given.
    latency
        Seconds of job ``j`` on core ``c`` with enough bandwidth, shape (jobs, cores); infinite
        where ``c`` cannot run ``j``.
    bandwidth
        Bytes/s below which the job stalls there, shape (jobs, cores); 0 where ``c`` cannot run
        ``j``.
    flops
        Floating-point operations of each job, two per multiply-accumulate; 0 where that is not
        known.
    energy
        Joules of job ``j`` on core ``c``, shape (jobs, cores), infinite where it cannot run; None
        where the cost model does not say.
    clock
        Hertz that all cores share, or None: then latencies are not shown in cycles.
    provenance
        What the costs come from, and of how many jobs; empty where nobody has said.
    """

    jobs: tuple[str, ...]
    cores: tuple[str, ...]
    latency: Floats
    bandwidth: Floats
    flops: Ints
    energy: Floats | None = None
    clock: float | None = None
    provenance: tuple[Provenance, ...] = ()


class CostModel(Protocol):
    """A cost model: gives what every job costs on every core when nothing else runs and nothing
    stalls it."""

    kept_from: ClassVar[int | None] = None
    """Jobs from which on reading a kept analysis takes less time than working it out (`python -m
    benchmarks.costs`); None: never."""

    heeds_calibration: ClassVar[bool] = True
    """Whether the model looks at efficiencies and overheads, so that a calibrated target makes its
    answers calibrated."""

    def analyse(self, workload: Workload, target: Target) -> JobAnalysis:
        """Analyse all jobs on all cores; raises :class:`~loadmaster.core.errors.LoadmasterError`
        for what the model cannot cost."""

    def with_table(self, path: str) -> CostModel | None:
        """The model with a table of the user's, as ``MODEL:TABLE.csv`` asks for; None if it takes
        none."""
        return None


def analysis_of(
    workload: Workload,
    target: Target,
    latency: Floats,
    bandwidth: Floats,
    energy: Floats | None,
) -> JobAnalysis:
    """The table of a workload's jobs on a target's cores; operations are two per
    multiply-accumulate.

    Raises :class:`~loadmaster.core.errors.JobError` for a job of 2^62 operations or more.
    """
    for job in workload.jobs:
        if 2 * job.macs >= WHOLE_LIMIT:
            raise JobError(
                f"job {job.name} has {job.macs} multiply-accumulates, more than can be counted:"
                " split it"
            )
    # A roofline core has no clock.
    clocks = {None if core.style is Style.ROOFLINE else core.clock for core in target.cores}
    return JobAnalysis(
        jobs=tuple(job.name for job in workload.jobs),
        cores=tuple(core.name for core in target.cores),
        latency=latency,
        bandwidth=bandwidth,
        flops=np.array([2 * job.macs for job in workload.jobs], dtype=np.int64),
        energy=energy,
        clock=clocks.pop() if len(clocks) == 1 else None,
    )


def per_core(per_kind: Iterable[Any], position: Ints) -> Any:
    """Figures of kinds of core, shape (n,) each, as columns of the cores that are of them."""
    return np.stack(list(per_kind), axis=1)[:, position]


def kinds_of(target: Target) -> tuple[list[Core], Ints]:
    """Cores that differ by more than their names, each once, and for every core the position of its
    like among them."""
    number: dict[str, int] = {}
    position = [number.setdefault(kind_key(core), len(number)) for core in target.cores]
    kinds = [target.cores[position.index(kind)] for kind in number.values()]
    return kinds, np.array(position, dtype=np.int64)


def kind_key(part: Core | Memory) -> str:
    """Return a key of all fields of a core or a memory but its name."""
    values = {
        name: sorted(value.items()) if isinstance(value, Mapping) else value
        for name, value in vars(part).items()
        if name != "name"
    }
    return repr(values)
