"""The default cost model as a job analysis: every job loads and stores all its operands from and to
main memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.energy import Amounts, inside_energy, refill_energy
from loadmaster.cost.analytical.job_costs import KindCosts, job_costs
from loadmaster.cost.analytical.nests import WIDTHS
from loadmaster.cost.base import CostModel, flops_of, shared_clock
from loadmaster.cost.job_analysis import JobAnalysis
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Workload


@dataclass(frozen=True)
class Dataflow(CostModel):
    """The model of :func:`~loadmaster.cost.analytical.job_costs.job_costs`, as the mapping problem
    sees it.

    No-stall latency is the time of a job whose operands arrive in time, and no-stall bandwidth the
    bytes that it moves, refills included, over that. Work without arithmetic is as fast as the
    core's lanes can pass its bytes on, and nothing takes less than a cycle. Energy is that of
    :mod:`loadmaster.cost.analytical.energy` for arithmetic, local buffers, on-chip network, private
    memory and main memory.
    """

    kept_from = 1000

    def analyse(self, workload: Workload, target: Target) -> JobAnalysis:
        """Analyse all jobs; raises :class:`~loadmaster.core.errors.TargetError` where a private
        buffer is too small for any tile."""
        costs = job_costs(workload, target)
        moved = np.stack(
            [costs.operands.per_job(kind.moved, len(workload.jobs)) for kind in costs.kinds], axis=1
        )
        amounts = Amounts(workload.jobs)
        latency = np.stack(
            [
                _latency(kind, amounts, bytes_)
                for kind, bytes_ in zip(costs.kinds, moved.T, strict=True)
            ],
            axis=1,
        )
        energy = np.stack(
            [
                inside_energy(kind.core, amounts, kind.delivered)
                + bytes_ * refill_energy(kind.core, target.main)
                for kind, bytes_ in zip(costs.kinds, moved.T, strict=True)
            ],
            axis=1,
        )
        return JobAnalysis(
            jobs=tuple(job.name for job in workload.jobs),
            cores=tuple(core.name for core in target.cores),
            latency=latency[:, costs.position],
            bandwidth=(moved / latency)[:, costs.position],
            flops=flops_of(workload),
            energy=energy[:, costs.position],
            clock=shared_clock(target),
        )


def _latency(kind: KindCosts, amounts: Amounts, moved: Floats) -> Floats:
    """Seconds without stalls on one kind of core."""
    core = kind.core
    passing = moved / (np.array(WIDTHS)[amounts.width] / 8 * core.lanes * core.clock)
    return np.asarray(
        np.maximum(
            np.where(kind.seconds > core.start_up, kind.seconds, passing + core.start_up),
            1 / core.clock,
        )
    )


MODEL = Dataflow()
