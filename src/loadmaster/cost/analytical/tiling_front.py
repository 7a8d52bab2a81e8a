"""Job tables in which each job has one of several tilings, and the least of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.errors import JobError
from loadmaster.cost.analytical.job_costs import job_tables
from loadmaster.cost.analytical.tiling import EXPECTED
from loadmaster.cost.job_table import JobTable
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Workload


def front_tables(workload: Workload, target: Target) -> list[JobTable]:
    """The job table with the tilings of each of
    :data:`~loadmaster.cost.analytical.tiling.EXPECTED`."""
    return job_tables(workload, target, list(EXPECTED))


def mixed_table(tables: Sequence[JobTable], chosen: Ints) -> JobTable:
    """The table in which job ``j`` has its row of ``tables[chosen[j]]``. O(operands x cores x
    tables)."""
    of_operand = chosen[tables[0].operand_job]
    parts = {
        name: np.stack([getattr(table, name) for table in tables])
        for name in ("compute", "energy", "moved", "tile")
    }
    rows = {"compute": chosen, "energy": chosen, "moved": of_operand, "tile": of_operand}
    return replace(
        tables[0],
        **{name: part[rows[name], np.arange(part.shape[1])] for name, part in parts.items()},
    )


def least_table(workload: Workload, target: Target) -> JobTable:
    """What each job takes at least of time, energy and each operand's bytes, whichever of its
    tilings it has: for bounds."""
    tables = front_tables(workload, target)
    least = {
        name: np.minimum.reduce([getattr(table, name) for table in tables])
        for name in ("compute", "energy", "moved", "tile")
    }
    return replace(tables[0], **least)


def table_as_planned(workload: Workload, target: Target, tilings: Sequence[str]) -> JobTable:
    """The table of jobs with the tilings that a plan names, one for each.

    Raises
    ------
    JobError
        If there is no such tiling.
    """
    names = list(EXPECTED)
    for job, name in zip(workload.jobs, tilings, strict=True):
        if name not in EXPECTED:
            raise JobError(f"job {job.name} is tiled for {name!r}: there are {', '.join(names)}")
    return tiled_table(
        workload, target, np.array([names.index(name) for name in tilings], dtype=np.int64)
    )


def tiled_table(workload: Workload, target: Target, chosen: Ints) -> JobTable:
    """The table in which job ``j`` has tiling ``chosen[j]``; only tilings that some job has are
    costed."""
    names, (used, rows) = list(EXPECTED), np.unique(chosen, return_inverse=True)
    return mixed_table(
        job_tables(workload, target, [names[number] for number in used.tolist() or [0]]), rows
    )
