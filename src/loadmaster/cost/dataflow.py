"""The default cost model as a job analysis: every job loads and stores all its operands from and to main memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.cost.model import flops_of, shared_clock
from loadmaster.cost.table import job_table
from loadmaster.hardware import Target
from loadmaster.job import Workload
from loadmaster.job_analysis import JobAnalysis


@dataclass(frozen=True)
class Dataflow:
    """The model of :func:`~loadmaster.cost.table.job_table`, as the mapping problem sees it."""

    def analyse(self, workload: Workload, target: Target) -> JobAnalysis:
        """Analyse all jobs: no-stall latency, and the bytes moved over it."""
        table = job_table(workload, target)
        moved = np.zeros_like(table.compute)
        np.add.at(moved, table.operand_job, table.moved)
        # Work without arithmetic is as fast as the lanes can pass its bytes on, and nothing is done in no time.
        width = np.array([max(1, job.bits // 8) for job in workload.jobs])[:, None]
        lanes, clock = (np.array([getattr(core, name) for core in target.cores], dtype=np.float64) for name in ("lanes", "clock"))
        passing = np.where(table.compute > 0, 0.0, moved / (width * lanes * clock))
        latency = np.maximum(np.maximum(table.compute, passing), 1 / clock)
        return JobAnalysis(
            jobs=tuple(job.name for job in workload.jobs),
            cores=tuple(core.name for core in target.cores),
            latency=latency,
            bandwidth=moved / latency,
            flops=flops_of(workload),
            clock=shared_clock(target),
        )
