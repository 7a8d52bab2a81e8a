"""Applies costs that the user measured to the jobs of a workload."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.errors import JobError
from loadmaster.cost.base import CostModel, JobAnalysis, analysis_of
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Workload


@dataclass(frozen=True, eq=False)
class MeasuredTable(CostModel):
    """A job analysis table of the user's.

    Its jobs are the workload's by name or, if every one of its job names is a whole number and no
    job of the workload is called so, by position from 0. Its cores are the target's by name. What
    is given and what there is must match: a job that the table leaves out or that is not there, and
    a core that is not there, are errors; a core that the table leaves out can run none of the jobs.
    A table for several workloads has rows by name for the jobs of ``several``.
    """

    table: JobAnalysis
    source: str
    several: frozenset[str] = frozenset()

    def analyse(self, workload: Workload, target: Target) -> JobAnalysis:
        """Return the table in the order of the workload's jobs and the target's cores; raises
        :class:`JobError` if they do not match."""
        jobs = tuple(job.name for job in workload.jobs)
        cores = tuple(core.name for core in target.cores)
        numbered = not self.several and all(name.isdecimal() for name in self.table.jobs)
        if numbered and not set(self.table.jobs) & set(jobs):
            jobs = tuple(map(str, range(len(jobs))))
        rows = self._rows(jobs)
        unknown = [name for name in self.table.cores if name not in cores]
        if unknown:
            raise JobError(
                f"{self.source}: core {unknown[0]!r} is not one of the target's: there are"
                f" {', '.join(cores)}"
            )
        # Index -1 is a column of cores that run nothing.
        columns = np.array(
            [self.table.cores.index(name) if name in self.table.cores else -1 for name in cores]
        )

        def ordered(values: Floats, absent: float) -> Floats:
            """Return a column of the table in the order of jobs and cores."""
            return np.pad(values, ((0, 0), (0, 1)), constant_values=absent)[rows][:, columns]

        given = self.table.flops[rows]
        found = analysis_of(
            workload,
            target,
            ordered(self.table.latency, np.inf),
            ordered(self.table.bandwidth, 0.0),
            None if self.table.energy is None else ordered(self.table.energy, np.inf),
        )
        return replace(found, flops=np.where(given > 0, given, found.flops))

    def _rows(self, names: tuple[str, ...]) -> Ints:
        """Return the row of the table for each job; raise JobError for rows without a job and jobs
        without a row."""
        index = {name: i for i, name in enumerate(self.table.jobs)}
        known = self.several or set(names)
        for name in index:
            if name not in known:
                raise JobError(
                    f"{self.source}: there is no job {name!r}: jobs are called like {names[0]!r},"
                    " or numbered from 0"
                )
        for name in names:
            if name not in index:
                raise JobError(
                    f"{self.source}: job {name!r} has no row: say its cost on at least one core"
                )
        return np.array([index[name] for name in names], dtype=np.int64)
