"""The default cost model as a job analysis: every job loads and stores all its operands from and to
main memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.cost.analytical.energy import refill_energy
from loadmaster.cost.analytical.job_costs import Costs, KindCosts, job_costs
from loadmaster.cost.analytical.nests import efficiencies, width_of
from loadmaster.cost.base import CostModel, JobAnalysis, analysis_of, per_core
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
        latency, moved, energy = (
            per_core(columns, costs.position)
            for columns in zip(
                *(_of_kind(costs, kind, workload, target) for kind in costs.kinds), strict=True
            )
        )
        return analysis_of(workload, target, latency, moved / latency, energy)


def _of_kind(
    costs: Costs, kind: KindCosts, workload: Workload, target: Target
) -> tuple[Floats, Ints, Floats]:
    """Seconds without stalls, bytes moved and joules of every job on one kind of core."""
    core = kind.core
    # The lanes pass bytes on by themselves only in jobs without arithmetic.
    bits = np.array([np.inf if j.nests or j.elements else width_of(j.bits) for j in workload.jobs])
    moved = costs.operands.per_job(kind.moved)
    rate = bits / 8 * core.lanes * core.clock * efficiencies(workload.jobs, core)
    busy = np.maximum(kind.seconds, moved / rate + core.start_up)
    joules = kind.energy + moved * refill_energy(core, target.main)
    return np.maximum(busy, 1 / core.clock), moved, joules


MODEL = Dataflow()
