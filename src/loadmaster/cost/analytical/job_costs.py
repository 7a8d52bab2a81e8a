"""The analytical cost model: seconds and bytes of every job of a workload on every kind of core of
a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster.core.arrays import Floats, Ints, ranges
from loadmaster.core.errors import JobError, TargetError
from loadmaster.core.units import FEMTOJOULES
from loadmaster.cost.analytical.energy import JobWork, inside_energy
from loadmaster.cost.analytical.nests import (
    EXPECTED,
    STREAMED,
    NestTable,
    Tilings,
    efficiencies,
    nest_table,
    tilings_for,
)
from loadmaster.cost.base import JobTable, kinds_of, per_core
from loadmaster.targets.hardware import Core, Target
from loadmaster.workloads.job import Job, Role, Workload

_PASSING = 16
"""Divisor of a core's buffer that gives the most bytes for all operands outside loop nests, beside
a nest."""


@dataclass(frozen=True)
class KindCosts:
    """Costs of every job and of every operand on one kind of core.

    ``seconds[j]`` without stalls; ``delivered[j]`` bytes over the core's on-chip network;
    ``energy[j]`` joules inside the core; ``moved[i]`` bytes of operand ``i`` across the core's
    port, and ``tile[i]`` bytes of the private buffer that hold it.
    """

    core: Core
    seconds: Floats
    delivered: Floats
    energy: Floats
    moved: Ints
    tile: Ints


@dataclass(frozen=True)
class Costs:
    """Costs by kind of core: ``position[c]`` is the kind of core ``c``."""

    operands: OperandRows
    kinds: list[KindCosts]
    position: Ints

    def on_cores(self, figure: str) -> Any:
        """A figure of every job or operand on every core, by its name in :class:`KindCosts`."""
        return per_core((getattr(kind, figure) for kind in self.kinds), self.position)


def job_table(workload: Workload, target: Target) -> JobTable:
    """Make the table of every job on every core, with the costs of :func:`job_costs`."""
    return job_tables(workload, target, (STREAMED,))[0]


def job_tables(
    workload: Workload, target: Target, expected: Sequence[str] = tuple(EXPECTED)
) -> list[JobTable]:
    """Make a table of every job on every core for each of the ``expected`` places of operands
    (:data:`~loadmaster.cost.analytical.nests.EXPECTED`).

    Equal jobs, such as those of mini-batches, are costed once. O(operands x cores) besides.
    """
    firsts, like = workload.alike
    one_of_each = replace(workload, jobs=tuple(workload.jobs[first] for first in firsts))
    found = _costs(one_of_each, target, expected)
    count = np.bincount(found[0].operands.job, minlength=len(firsts))
    rows = ranges((np.cumsum(count) - count)[like], count[like])
    index = workload.tensor_index
    names = (each.tensor for job in workload.jobs for each in (*job.reads, *job.writes))
    operands = (
        np.repeat(np.arange(len(like)), count[like]),
        np.array([index[name] for name in names], dtype=np.int64),
        found[0].operands.write[rows],
    )
    return [
        JobTable(
            costs.on_cores("seconds")[like],
            *operands,
            costs.on_cores("moved")[rows],
            costs.on_cores("tile")[rows],
            np.ceil(costs.on_cores("energy")[like] * FEMTOJOULES) / FEMTOJOULES,
        )
        for costs in found
    ]


def job_costs(workload: Workload, target: Target) -> Costs:
    """Compute the cost of every job on every kind of core, with all operands expected in main
    memory.

    For every loop nest one tiling is chosen
    (:func:`~loadmaster.cost.analytical.nests.tilings_for`), and cycles, bytes moved, bytes of
    private buffer and bytes over the on-chip network are all those of that tiling. A job takes the
    largest of three times that overlap: the array's cycles, the scalar operations over the core's
    lanes, and the bytes over the on-chip network at its bandwidth; and besides that the first
    tile's arrival and the last one's departure, the overhead of a job, and the latency of the
    network once. Operands outside loop nests, and all operands of a core without a private buffer,
    move once.

    Left out: bank conflicts, DRAM pages and refresh, contention in the on-chip network, sparsity,
    and refills served by a nearer shared memory (operands are refilled from where they lie).

    Time and memory are O(operands x kinds of core + distinct loop nests x sizes of buffer).
    """
    return _costs(workload, target, (STREAMED,))[0]


def _costs(workload: Workload, target: Target, expected: Sequence[str]) -> list[Costs]:
    """Return the costs of all jobs on all cores, one record for each expected tiling."""
    jobs = workload.jobs
    rows, nests, amounts = OperandRows(jobs), nest_table(jobs), JobWork(jobs)
    outside = rows.per_job(np.where(rows.nest < 0, rows.bytes, 0))
    cores, position = kinds_of(target)
    kinds = []
    for core in cores:
        chunk = _stream_chunks(rows, core) if core.buffer else np.zeros_like(rows.bytes)
        room = _room_for_nests(rows, nests, chunk, core)
        rate = core.clock * efficiencies(jobs, core)
        found = []
        for tilings in tilings_for(nests, room, core, target, expected):
            delivered = nests.per_job(tilings.delivered) + outside
            cycles = np.maximum(nests.per_job(tilings.cycles), amounts.elements / core.lanes)
            seconds = cycles / rate
            if core.noc_bandwidth is not None:
                seconds = np.maximum(seconds, delivered / core.noc_bandwidth)
            seconds = seconds + nests.per_job(tilings.lead) + core.start_up
            energy = inside_energy(core, amounts, delivered)
            traffic = (rows.bytes, chunk)
            if core.buffer:
                _check_fit(jobs, nests, tilings, room, core)
                traffic = _traffic(rows, nests, tilings, chunk)
            found.append(KindCosts(core, seconds, delivered, energy, *traffic))
        kinds.append(found)
    return [Costs(rows, list(of_place), position) for of_place in zip(*kinds, strict=True)]


class OperandRows:
    """All operands of all jobs as arrays, reads before writes."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = len(jobs)
        roles = list(Role)
        rows = [
            (number, write, each.bytes, roles.index(each.role), each.nest)
            for number, job in enumerate(jobs)
            for write, side in enumerate((job.reads, job.writes))
            for each in side
        ]
        columns = np.array(rows, dtype=np.int64).reshape(len(rows), 5).T.copy()
        self.job, written, self.bytes, self.role, self.nest = columns
        self.write = written.astype(np.bool_)

    def per_job(self, per_operand: Ints) -> Ints:
        """Sum over the operands of each job, shape (jobs,); exact."""
        ends = np.searchsorted(self.job, np.arange(self.jobs + 1))
        return np.diff(np.append(0, np.cumsum(per_operand))[ends])


def _traffic(
    rows: OperandRows, nests: NestTable, tilings: Tilings, chunk: Ints
) -> tuple[Ints, Ints]:
    """Bytes moved and bytes of private buffer, per operand, on one core; ``chunk`` is the buffer of
    those outside loop nests."""
    in_nest = rows.nest >= 0
    row = np.where(in_nest, nests.row_of[rows.job, rows.nest] if nests.row_of.size else -1, -1)
    # By role and nest row; the last row is that of operands outside nests.
    times, tiles, whole = np.zeros((3, len(Role), len(nests.k) + 1))
    times[:, :-1] = 1.0
    times[:2, :-1] = tilings.input_times, tilings.weight_times
    tiles[:3, :-1] = tilings.input_tile, tilings.weight_tile, tilings.output_tile
    whole[:3, :-1] = nests.input_bytes, nests.weight_bytes, nests.output_bytes
    moved = np.where(
        in_nest, np.ceil(np.round(rows.bytes * times[rows.role, row], 6)), rows.bytes
    ).astype(np.int64)
    # Slices of one tensor share its tile in proportion to their bytes.
    share = rows.bytes / np.maximum(1.0, whole[rows.role, row])
    tile = np.where(in_nest, np.floor(tiles[rows.role, row] * share), chunk).astype(np.int64)
    return moved, np.clip(tile, 1, np.maximum(1, rows.bytes * 4))


def _stream_chunks(rows: OperandRows, core: Core) -> Ints:
    """Buffer bytes of each operand outside the loop nests: together at most the whole buffer or,
    beside a nest, a sixteenth of it.

    Beside a nest these operands arrive in step with the results, so a few bursts suffice.
    """
    outside = rows.nest < 0
    count = np.bincount(rows.job[outside], minlength=rows.jobs)
    beside = np.bincount(rows.job[~outside], minlength=rows.jobs) > 0
    room = np.where(beside, core.buffer // _PASSING, core.buffer)
    share = room // np.maximum(1, count)
    if np.any((share == 0) & (count > 0)):
        raise TargetError(
            f"core {core.name}: a private buffer of {core.buffer} bytes cannot hold one byte of"
            " each operand of a job"
        )
    return np.where(outside, np.minimum(rows.bytes, share[rows.job]), 0)


def _room_for_nests(rows: OperandRows, nests: NestTable, chunk: Ints, core: Core) -> Floats:
    """Buffer bytes left for each distinct nest; several nests of one job divide them equally."""
    # A few bytes of slack for slices of a tile, which are rounded one by one.
    taken = np.bincount(rows.job, weights=chunk + 1, minlength=rows.jobs)
    present = nests.row_of >= 0
    free = np.floor((core.buffer - taken) / np.maximum(1, present.sum(axis=1)))
    room = np.full(len(nests.k), float(core.buffer))
    np.minimum.at(
        room, nests.row_of[present], np.broadcast_to(free[:, None], present.shape)[present]
    )
    return room


def _check_fit(
    jobs: Sequence[Job], nests: NestTable, tilings: Tilings, room: Floats, core: Core
) -> None:
    """Raise TargetError if the smallest tile of a job exceeds the free part of the private
    buffer."""
    misfit = np.flatnonzero(tilings.buffer > room)
    if misfit.size:
        job = jobs[int(np.argmax((nests.row_of == misfit[0]).any(axis=1)))]
        need = int(np.ceil(tilings.buffer[misfit[0]]))
        raise TargetError(
            f"core {core.name}: the smallest tile of job {job.name} needs {need} bytes of private"
            f" buffer and {int(max(0, room[misfit[0]]))} are free: enlarge the buffer of its core"
        )


def mixed_table(tables: Sequence[JobTable], chosen: Ints) -> JobTable:
    """The table in which job ``j`` has its row of ``tables[chosen[j]]``. O(operands x cores x
    tables)."""
    of_operand = chosen[tables[0].operand_job]
    rows = {"compute": chosen, "energy": chosen, "moved": of_operand, "tile": of_operand}
    mixed = {
        name: np.stack([getattr(table, name) for table in tables])[row, np.arange(len(row))]
        for name, row in rows.items()
    }
    return replace(tables[0], **mixed)


def least_table(workload: Workload, target: Target) -> JobTable:
    """The table of least times, energies and operand bytes of each job over all its tilings, for
    bounds."""
    tables = job_tables(workload, target)
    least = {
        name: np.minimum.reduce([getattr(table, name) for table in tables])
        for name in ("compute", "energy", "moved", "tile")
    }
    return replace(tables[0], **least)


def table_as_planned(workload: Workload, target: Target, tilings: Sequence[str]) -> JobTable:
    """The table of jobs with the tilings that a plan names.

    Raises
    ------
    JobError
        If there is no such tiling.
    """
    names = list(EXPECTED)
    for job, name in zip(workload.jobs, tilings, strict=True):
        if name not in EXPECTED:
            raise JobError(f"job {job.name} is tiled for {name!r}: there are {', '.join(names)}")
    chosen = np.array([names.index(name) for name in tilings], dtype=np.int64)
    return tiled_table(workload, target, chosen)


def tiled_table(workload: Workload, target: Target, chosen: Ints) -> JobTable:
    """The table in which job ``j`` has tiling ``chosen[j]``; only tilings that some job has are
    costed."""
    names, (used, rows) = list(EXPECTED), np.unique(chosen, return_inverse=True)
    return mixed_table(
        job_tables(workload, target, [names[number] for number in used.tolist() or [0]]), rows
    )
