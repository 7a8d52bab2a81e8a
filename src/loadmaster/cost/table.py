"""The analytical cost model: from a workload and a target to the job table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.cost.cycles import array_cycles
from loadmaster.cost.nests import NestTable, nest_table
from loadmaster.cost.tiling import Tiling, best_tiling
from loadmaster.errors import TargetError
from loadmaster.hardware import Core, Target
from loadmaster.job import Job, JobTable, Role, Workload

_WIDTHS = (8, 16, 32)


def job_table(workload: Workload, target: Target) -> JobTable:
    """Cost of every job on every core.

    Compute time is the larger of the array's cycles (:mod:`loadmaster.cost.cycles`) and the scalar operations over the
    core's lanes: fused elementwise work overlaps the array. Bytes moved are each operand's bytes times the refills of
    the tiling that moves fewest bytes in the private buffer (:mod:`loadmaster.cost.tiling`); operands outside loop
    nests, and all operands of a core without a private buffer, move once.

    Left out: filling and draining arrays and pipelines, the first and last tile of a job (transfers are taken to overlap arithmetic
    completely), bank conflicts, DRAM pages and refresh, the on-chip network's latency, sparsity, refills served by a
    nearer shared memory (operands are refilled from where they lie), and any advantage of a tiling chosen for where operands lie.

    Time and memory are O(operands x kinds of core + distinct loop nests); cores that differ only by name are computed once.
    """
    rows = _OperandRows(workload)
    nests = nest_table(workload.jobs)
    cores = target.cores
    compute = np.zeros((len(workload.jobs), len(cores)))
    moved = np.zeros((len(rows.bytes), len(cores)), dtype=np.int64)
    tile = np.zeros_like(moved)
    done: dict[str, int] = {}
    for index, core in enumerate(cores):
        first = done.setdefault(_kind(core), index)
        if first == index:
            compute[:, index] = _compute(workload.jobs, nests, core)
            moved[:, index], tile[:, index] = _traffic(workload.jobs, rows, nests, core)
        else:
            compute[:, index], moved[:, index], tile[:, index] = compute[:, first], moved[:, first], tile[:, first]
    return JobTable(compute, rows.job, rows.tensor, rows.write, moved, tile)


def _kind(core: Core) -> str:
    """Everything about a core but its name."""
    return repr((core.style, core.rows, core.columns, core.clock, sorted(core.macs_per_cycle.items()), core.lanes, core.buffer))


class _OperandRows:
    """All operands of all jobs as arrays, reads before writes."""

    def __init__(self, workload: Workload) -> None:
        index = workload.tensor_index
        operands = [(j, o, w) for j, job in enumerate(workload.jobs) for w, side in ((False, job.reads), (True, job.writes)) for o in side]
        self.job = np.array([j for j, _, _ in operands], dtype=np.int64)
        self.tensor = np.array([index[o.tensor] for _, o, _ in operands], dtype=np.int64)
        self.write = np.array([w for _, _, w in operands], dtype=np.bool_)
        self.bytes = np.array([o.bytes for _, o, _ in operands], dtype=np.int64)
        roles = list(Role)
        self.role = np.array([roles.index(o.role) for _, o, _ in operands], dtype=np.int64)
        self.nest = np.array([o.nest for _, o, _ in operands], dtype=np.int64)


def _compute(jobs: Sequence[Job], nests: NestTable, core: Core) -> NDArray[np.float64]:
    """Arithmetic seconds of every job on one core."""
    bits = np.array([_WIDTHS[int(np.searchsorted(_WIDTHS, min(job.bits, 32)))] for job in jobs])
    rate = np.array([core.macs_per_cycle[int(b)] for b in bits])
    per_nest = np.append(array_cycles(nests, core) * nests.repeats, 0.0)  # row -1: no nest
    cycles = per_nest[nests.row_of].sum(axis=1) / rate
    lanes = np.array([job.elements for job in jobs], dtype=np.float64) / core.lanes
    return np.asarray(np.maximum(cycles, lanes) / core.clock)


def _traffic(jobs: Sequence[Job], rows: _OperandRows, nests: NestTable, core: Core) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes moved and bytes of private buffer, per operand, on one core."""
    if core.buffer == 0:
        return rows.bytes, np.zeros_like(rows.bytes)
    in_nest = rows.nest >= 0
    row = np.where(in_nest, nests.row_of[rows.job, rows.nest] if nests.row_of.size else -1, -1)
    chunk = _stream_chunks(len(jobs), rows, core)
    room = _room_for_nests(jobs, rows, nests, chunk, core)
    tiling = best_tiling(nests, room)
    _check_fit(jobs, nests, tiling, room, core)
    times, tile_bytes, whole = _by_role(tiling, nests)
    role = rows.role
    moved = np.where(in_nest, np.rint(rows.bytes * times[role, row]), rows.bytes).astype(np.int64)
    # Slices of one tensor share its tile in proportion to their bytes.
    share = rows.bytes / np.maximum(1.0, whole[role, row])
    tile = np.where(in_nest, np.floor(tile_bytes[role, row] * share), chunk).astype(np.int64)
    return np.maximum(moved, rows.bytes), np.clip(tile, 1, np.maximum(1, rows.bytes * 4))


def _stream_chunks(jobs: int, rows: _OperandRows, core: Core) -> NDArray[np.int64]:
    """Buffer bytes of each operand outside the loop nests: together at most all of the buffer, or a quarter beside a nest."""
    outside = rows.nest < 0
    count = np.bincount(rows.job[outside], minlength=jobs)
    beside = np.bincount(rows.job[~outside], minlength=jobs) > 0
    room = np.where(beside, core.buffer // 4, core.buffer)
    share = room // np.maximum(1, count)
    if np.any((share == 0) & (count > 0)):
        raise TargetError(f"core {core.name}: a private buffer of {core.buffer} bytes cannot hold one byte of each operand of a job")
    return np.where(outside, np.minimum(rows.bytes, share[rows.job]), 0)


def _room_for_nests(jobs: Sequence[Job], rows: _OperandRows, nests: NestTable, chunk: NDArray[np.int64], core: Core) -> NDArray[np.float64]:
    """Buffer bytes left for each distinct nest, which jobs of equal operands share; nests of one job share what is left."""
    taken = np.bincount(rows.job, weights=chunk, minlength=len(jobs))
    # A few bytes of slack for slices of a tile, which are rounded one by one.
    slices = np.bincount(rows.job, minlength=len(jobs))
    room = np.full(len(nests.k), float(core.buffer))
    for job, nest_rows in enumerate(nests.row_of):
        own = nest_rows[nest_rows >= 0]
        if own.size:
            np.minimum.at(room, own, np.floor((core.buffer - taken[job] - slices[job]) / own.size))
    return room


def _check_fit(jobs: Sequence[Job], nests: NestTable, tiling: Tiling, room: NDArray[np.float64], core: Core) -> None:
    misfit = np.flatnonzero(tiling.buffer > room)
    if misfit.size:
        job = jobs[int(np.argmax((nests.row_of == misfit[0]).any(axis=1)))]
        need = int(np.ceil(tiling.buffer[misfit[0]]))
        raise TargetError(
            f"core {core.name}: the smallest tile of job {job.name} needs {need} bytes of private buffer "
            f"and {int(max(0, room[misfit[0]]))} are free: enlarge the buffer of its core"
        )


def _by_role(tiling: Tiling, nests: NestTable) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Refill factor, tile bytes and operand bytes, indexed [role, nest row]; the last row stands for no nest."""
    one = np.ones_like(tiling.input_times)
    times = np.stack([tiling.input_times, tiling.weight_times, one, one])
    tiles = np.stack([tiling.input_tile, tiling.weight_tile, tiling.output_tile, one])
    whole = np.stack([nests.input_bytes, nests.weight_bytes, nests.output_bytes, one])
    pad = ((0, 0), (0, 1))
    return np.pad(times, pad), np.pad(tiles, pad), np.pad(whole, pad)
