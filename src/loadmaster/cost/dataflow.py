"""The default cost model as a job analysis: every job loads and stores all its operands from and to main memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.cost.energy import array_energy, delivery_energy, refill_energy, scalar_energy
from loadmaster.cost.model import flops_of, shared_clock
from loadmaster.cost.nests import WIDTHS, Floats, width_of
from loadmaster.cost.table import KindCosts, job_costs
from loadmaster.hardware import Target
from loadmaster.job import Job, Workload
from loadmaster.job_analysis import JobAnalysis


@dataclass(frozen=True)
class Dataflow:
    """The model of :func:`~loadmaster.cost.table.job_costs`, as the mapping problem sees it.

    No-stall latency is the time of a job whose operands arrive in time, and no-stall bandwidth the bytes that it moves, refills included,
    over that. Work without arithmetic is as fast as the core's lanes can pass its bytes on, and nothing takes less than a cycle. Energy is
    that of :mod:`loadmaster.cost.energy` for arithmetic, local buffers, on-chip network, private memory and main memory.
    """

    def analyse(self, workload: Workload, target: Target) -> JobAnalysis:
        """Analyse all jobs; raises :class:`~loadmaster.errors.TargetError` where a private buffer is too small for any tile."""
        costs = job_costs(workload, target)
        moved = np.stack([costs.operands.per_job(kind.moved, len(workload.jobs)) for kind in costs.kinds], axis=1)
        amounts = _Amounts(workload.jobs)
        latency = np.stack([_latency(kind, amounts, bytes_) for kind, bytes_ in zip(costs.kinds, moved.T, strict=True)], axis=1)
        energy = np.stack([_energy(kind, amounts, bytes_) for kind, bytes_ in zip(costs.kinds, moved.T, strict=True)], axis=1)
        return JobAnalysis(
            jobs=tuple(job.name for job in workload.jobs),
            cores=tuple(core.name for core in target.cores),
            latency=latency[:, costs.position],
            bandwidth=(moved / latency)[:, costs.position],
            flops=flops_of(workload),
            energy=energy[:, costs.position],
            clock=shared_clock(target),
        )


class _Amounts:
    """Work of every job, whatever the core."""

    def __init__(self, jobs: tuple[Job, ...]) -> None:
        self.macs = np.array([job.macs for job in jobs], dtype=np.float64)
        self.elements = np.array([job.elements for job in jobs], dtype=np.float64)
        self.width = np.array([WIDTHS.index(width_of(job)) for job in jobs], dtype=np.int64)


def _latency(kind: KindCosts, amounts: _Amounts, moved: Floats) -> Floats:
    """Seconds without stalls on one kind of core."""
    core = kind.core
    passing = moved / (np.array(WIDTHS)[amounts.width] / 8 * core.lanes * core.clock)
    return np.asarray(np.maximum(np.where(kind.seconds > core.noc_latency, kind.seconds, passing + core.noc_latency), 1 / core.clock))


def _energy(kind: KindCosts, amounts: _Amounts, moved: Floats) -> Floats:
    """Joules on one kind of core."""
    core = kind.core
    per_mac = np.array([array_energy(core, width) for width in WIDTHS])[amounts.width]
    per_element = np.array([scalar_energy(width) for width in WIDTHS])[amounts.width]
    arithmetic = amounts.macs * per_mac + amounts.elements * per_element
    return np.asarray(arithmetic + kind.delivered * delivery_energy(core) + moved * refill_energy(core))
