"""The protocol of cost models, and functions that several of them use."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.errors import JobError
from loadmaster.cost.job_analysis import JobAnalysis
from loadmaster.targets.hardware import Core, Style, Target
from loadmaster.workloads.job import Workload


class CostModel(Protocol):
    """A cost model: gives what every job costs on every core when nothing else runs and nothing
    stalls it."""

    kept_from: ClassVar[int | None] = None
    """Jobs from which on reading a kept analysis takes less time than working it out (`python -m
    benchmarks.costs`); None: never."""

    heeds_calibration: ClassVar[bool] = True
    """Whether the model looks at efficiencies and overheads, so that a calibrated target makes its
    answers calibrated."""

    def analyse(self, workload: Workload, target: Target) -> JobAnalysis:
        """Analyse all jobs on all cores; raises :class:`~loadmaster.core.errors.LoadmasterError`
        for what the model cannot cost."""

    def with_table(self, path: str) -> CostModel | None:
        """The model with a table of the user's, as ``MODEL:TABLE.csv`` asks for; None if it takes
        none."""
        return None


def shared_clock(target: Target) -> float | None:
    """Return the hertz at which all cores run, or None if they differ; a roofline core has no
    clock."""
    clocks = {None if core.style is Style.ROOFLINE else core.clock for core in target.cores}
    return clocks.pop() if len(clocks) == 1 else None


def kinds_of(target: Target) -> tuple[list[Core], Ints]:
    """Cores that differ by more than their names, each once, and for every core the position of its
    like among them."""
    first: dict[str, int] = {}
    kinds: list[Core] = []
    positions = []
    for core in target.cores:
        key = kind_key(core)
        if key not in first:
            first[key] = len(kinds)
            kinds.append(core)
        positions.append(first[key])
    return kinds, np.array(positions, dtype=np.int64)


def kind_key(core: Core) -> str:
    """Return a key of all fields of a core but its name."""
    values = {name: value for name, value in vars(core).items() if name != "name"}
    tables = {
        "macs_per_cycle": sorted(core.macs_per_cycle.items()),
        "efficiency": sorted(core.efficiency.items()),
    }
    tables["energy"] = sorted(core.energy.items())
    return repr(values | tables)


def flops_of(workload: Workload) -> Ints:
    """Two per multiply-accumulate, for every job; raises :class:`~loadmaster.core.errors.JobError`
    from 2^62 on."""
    counts = [2 * job.macs for job in workload.jobs]
    for job, count in zip(workload.jobs, counts, strict=True):
        if count >= WHOLE_LIMIT:
            raise JobError(
                f"job {job.name} has {job.macs} multiply-accumulates, more than can be counted:"
                " split it"
            )
    return np.array(counts, dtype=np.int64)
