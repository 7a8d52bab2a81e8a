"""Job analysis tables as CSV: one row per job and core, columns
``job,core,latency_s,bandwidth_bytes_per_s``."""

from __future__ import annotations

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.csv_cells import CsvRow, rows_of
from loadmaster.core.errors import JobError
from loadmaster.cost.base import JobAnalysis

COLUMNS = ("job", "core", "latency_s", "bandwidth_bytes_per_s")
OPTIONAL = ("flops", "energy_j")


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
    rows = list(rows_of(text, source, COLUMNS, OPTIONAL))
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
