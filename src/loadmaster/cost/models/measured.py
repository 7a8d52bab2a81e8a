"""Costs that the user measured: job analysis tables as CSV, applied to the jobs of a workload. They
have one row per job and core, columns ``job,core,latency_s,bandwidth_bytes_per_s``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT, Floats, Ints
from loadmaster.core.csv_cells import CsvRow, rows_of
from loadmaster.core.errors import JobError
from loadmaster.cost.base import CostModel, JobAnalysis, analysis_of
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Workload

_COLUMNS = ("job", "core", "latency_s", "bandwidth_bytes_per_s")
_OPTIONAL = ("flops", "energy_j")


def parse_job_analysis(text: str, source: str) -> JobAnalysis:
    """Parse a job analysis table; ``source`` names it in errors.

    Jobs and cores come in the order in which the file first names them. A pair without a row is a
    job that the core cannot run: latency and energy infinite, bandwidth 0. Columns ``flops`` (a
    whole number, the same in every row of a job that gives it) and ``energy_j`` may be left out.

    Raises
    ------
    JobError
        Naming file, line and column: latencies must be finite and more than zero, the rest finite
        and not negative, and a pair of job and core is there once.
    """
    rows = list(rows_of(text, source, _COLUMNS, _OPTIONAL))
    jobs, cores = (
        {name: i for i, name in enumerate(dict.fromkeys(row.text(column) for row in rows))}
        for column in ("job", "core")
    )
    latency = np.full((len(jobs), len(cores)), np.inf)
    bandwidth = np.zeros_like(latency)
    energy = np.full_like(latency, np.inf)
    flops: dict[str, int] = {}
    first: dict[tuple[int, int], CsvRow] = {}
    for row in rows:
        job = row.cells["job"]
        pair = jobs[job], cores[row.cells["core"]]
        if pair in first:
            raise JobError(
                f"{row.where('job')} {job!r} on {row.cells['core']!r} is there twice, first at"
                f" {first[pair].place}: keep one"
            )
        first[pair] = row
        latency[pair] = row.number("latency_s", positive=True)
        bandwidth[pair] = row.number("bandwidth_bytes_per_s")
        if "energy_j" in row.cells:
            energy[pair] = row.number("energy_j")
        if row.cells.get("flops"):
            count = row.whole("flops", 0, WHOLE_LIMIT)
            if flops.setdefault(job, count) != count:
                raise JobError(
                    f"{row.where('flops')} is {count}, and an earlier row of job {job!r} says"
                    f" {flops[job]}: a job has one count"
                )
    counts = np.array([flops.get(job, 0) for job in jobs], dtype=np.int64)
    return JobAnalysis(
        tuple(jobs),
        tuple(cores),
        latency,
        bandwidth,
        counts,
        energy if "energy_j" in rows[0].cells else None,
    )


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
