"""M3E's job analysis table: latency and bandwidth of every job on every core when nothing stalls
it."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.provenance import Provenance


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
