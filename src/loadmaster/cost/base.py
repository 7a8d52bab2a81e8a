"""What every cost model offers, and what all of them share."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.errors import JobError
from loadmaster.cost.job_analysis import JobAnalysis
from loadmaster.targets.hardware import Core, Style, Target
from loadmaster.workloads.job import Workload

_MOST_FLOPS = 2**62


class CostModel(Protocol):
    """Says what every job costs on every core when nothing else runs and nothing stalls it."""

    kept_from: ClassVar[int | None] = None
    """Jobs from which on reading a kept analysis takes less time than working it out (`python -m benchmarks.costs`); None: never."""

    def analyse(self, workload: Workload, target: Target) -> JobAnalysis:
        """Analyse all jobs on all cores; raises :class:`~loadmaster.core.errors.LoadmasterError` for what the model cannot cost."""

    def with_table(self, path: str) -> CostModel | None:
        """The model with a table of the user's, as ``MODEL:TABLE.csv`` asks for; None if it takes none."""
        return None


def shared_clock(target: Target) -> float | None:
    """Hertz at which all cores run, or None; a roofline core has no clock."""
    clocks = {None if core.style is Style.ROOFLINE else core.clock for core in target.cores}
    return clocks.pop() if len(clocks) == 1 else None


def kinds_of(target: Target) -> tuple[list[Core], NDArray[np.int64]]:
    """Cores that differ by more than their names, each once, and for every core the position of its like among them."""
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
    """Everything about a core but its name."""
    values = {name: value for name, value in vars(core).items() if name != "name"}
    return repr(values | {"macs_per_cycle": sorted(core.macs_per_cycle.items())})


def flops_of(workload: Workload) -> NDArray[np.int64]:
    """Two per multiply-accumulate, for every job; raises :class:`~loadmaster.core.errors.JobError` from 2^62 on."""
    counts = [2 * job.macs for job in workload.jobs]
    for job, count in zip(workload.jobs, counts, strict=True):
        if count >= _MOST_FLOPS:
            raise JobError(f"job {job.name} has {job.macs} multiply-accumulates, more than can be counted: split it")
    return np.array(counts, dtype=np.int64)
