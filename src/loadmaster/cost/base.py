"""The protocol of cost models, M3E's job analysis table, and functions that several models use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT, Floats, Ints
from loadmaster.core.errors import JobError
from loadmaster.core.provenance import Provenance
from loadmaster.targets.hardware import Core, Style, Target
from loadmaster.workloads.job import Workload


@dataclass(frozen=True, eq=False)
class JobAnalysis:
    """No-stall latency and bandwidth of jobs on cores (M3E, HPCA 2022).

    Attributes
    ----------
    jobs, cores
        Names; jobs in the order in which they were given.
    latency
        Seconds of job ``j`` on core ``c`` with enough bandwidth, shape (jobs, cores); infinite
        where ``c`` cannot run ``j``.
    bandwidth
        Bytes/s below which the job stalls there, shape (jobs, cores); 0 where ``c`` cannot run
        ``j``.
    flops
        Floating-point operations of each job, two per multiply-accumulate; 0 where that is not
        known.
    energy
        Joules of job ``j`` on core ``c``, shape (jobs, cores), infinite where it cannot run; None
        where the cost model does not say.
    clock
        Hertz that all cores share, or None: then latencies are not shown in cycles.
    provenance
        What the costs come from, and of how many jobs; empty where nobody has said.
    """

    jobs: tuple[str, ...]
    cores: tuple[str, ...]
    latency: Floats
    bandwidth: Floats
    flops: Ints
    energy: Floats | None = None
    clock: float | None = None
    provenance: tuple[Provenance, ...] = ()


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


def analysis_of(
    workload: Workload,
    target: Target,
    latency: Floats,
    bandwidth: Floats,
    energy: Floats | None,
    flops: Ints | None = None,
) -> JobAnalysis:
    """The table of a workload's jobs on a target's cores; operations are two per
    multiply-accumulate, unless they are given.

    Raises :class:`~loadmaster.core.errors.JobError` for a job of 2^62 operations or more.
    """
    # A roofline core has no clock.
    clocks = {None if core.style is Style.ROOFLINE else core.clock for core in target.cores}
    return JobAnalysis(
        jobs=tuple(job.name for job in workload.jobs),
        cores=tuple(core.name for core in target.cores),
        latency=latency,
        bandwidth=bandwidth,
        flops=flops_of(workload) if flops is None else flops,
        energy=energy,
        clock=clocks.pop() if len(clocks) == 1 else None,
    )


def per_core(per_kind: Iterable[Any], position: Ints) -> Any:
    """Figures of kinds of core, shape (n,) each, as columns of the cores that are of them."""
    return np.stack(list(per_kind), axis=1)[:, position]


def kinds_of(target: Target) -> tuple[list[Core], Ints]:
    """Cores that differ by more than their names, each once, and for every core the position of its
    like among them."""
    keys = [kind_key(core) for core in target.cores]
    kinds: dict[str, Core] = {}
    for key, core in zip(keys, target.cores, strict=True):
        kinds.setdefault(key, core)
    order = list(kinds)
    return list(kinds.values()), np.array([order.index(key) for key in keys], dtype=np.int64)


def kind_key(core: Core) -> str:
    """Return a key of all fields of a core but its name."""
    values = {
        name: sorted(value.items()) if isinstance(value, Mapping) else value
        for name, value in vars(core).items()
        if name != "name"
    }
    return repr(values)


def flops_of(workload: Workload) -> Ints:
    """Two per multiply-accumulate, for every job; raises :class:`~loadmaster.core.errors.JobError`
    from 2^62 on."""
    for job in workload.jobs:
        if 2 * job.macs >= WHOLE_LIMIT:
            raise JobError(
                f"job {job.name} has {job.macs} multiply-accumulates, more than can be counted:"
                " split it"
            )
    return np.array([2 * job.macs for job in workload.jobs], dtype=np.int64)
