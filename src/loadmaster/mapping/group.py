"""A group of jobs that share one bandwidth: what M3E (HPCA 2022) maps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster import _native
from loadmaster.core.arguments import require_known
from loadmaster.core.arrays import Floats, Int32s, Ints, Mask, UInt32s
from loadmaster.core.errors import MappingError
from loadmaster.cost.base import JobAnalysis

Cores = Int32s
"""Rows of mappings: the core of every job."""
Priorities = UInt32s
"""Rows of mappings: the priority of every job; a core takes the job of the least number first."""
Queues = Int32s
"""Rows of mappings: the queues of all cores, concatenated, each terminated by the number of
jobs."""

OBJECTIVES = {
    "makespan": (1.0, 0.0),
    "throughput": (1.0, 0.0),
    "energy": (0.0, 1.0),
    "edp": (1.0, 1.0),
}
"""Exponents of makespan and energy in the score. The work is fixed, so throughput is maximal where
the makespan is minimal."""
ALLOCATORS = ("demand", "even")
_ROUNDED = 1e-9
"""Relative margin for the rounding of a makespan."""
_FAR = 1e300
"""Upper limit of the sums of latencies and of demands, so that computed figures do not
overflow."""
_MOST_JOBS, _MOST_CORES = 2**22 - 1, 2**10


@dataclass(frozen=True, eq=False)
class Group:
    """A group of jobs without dependencies, and the objective of its mappings.

    Attributes
    ----------
    latency
        Seconds of job ``j`` on core ``c`` when nothing stalls it, shape (jobs, cores); infinite
        where ``c`` cannot run ``j``.
    demand
        Share of the system bandwidth that it then uses, shape (jobs, cores).
    energy
        Joules, shape (jobs, cores), or None.
    weights
        A mapping scores makespan ** weights[0] * energy ** weights[1]; less is better.
    """

    latency: Floats
    demand: Floats
    energy: Floats | None = None
    weights: tuple[float, float] = (1.0, 0.0)

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self.latency)

    @property
    def cores(self) -> int:
        """How many cores there are."""
        return len(self.latency[0])

    @cached_property
    def allowed(self) -> Mask:
        """Which core can run which job, shape (jobs, cores)."""
        return np.isfinite(self.latency)

    @cached_property
    def every_job_uses_bandwidth(self) -> bool:
        """Whether every job demands some bandwidth, so that all running jobs slow down alike."""
        return bool((self.demand[self.allowed] > 0).all())

    @property
    def busy(self) -> Floats:
        """``latency``, but 0 where a core cannot run a job."""
        return np.where(self.allowed, self.latency, 0.0)

    @property
    def usable_demand(self) -> Floats:
        """``demand``, but 0 where a core cannot run a job."""
        return np.where(self.allowed, self.demand, 0.0)

    @property
    def alone(self) -> Floats:
        """Seconds that a job takes with all the bandwidth; infinite where it cannot run."""
        return np.asarray(self.latency * np.maximum(1.0, self.demand))

    def within(self, makespan: float) -> Group:
        """Restrict the group to mappings of at most ``makespan``: a core cannot run jobs that take
        longer there even with all the bandwidth."""
        fits = self.alone <= makespan * (1 + _ROUNDED)
        return replace(self, latency=np.where(fits, self.latency, np.inf))

    @cached_property
    def native(self) -> _native.MappingGroup:
        """The group for native code, checked and copied once; O(jobs x cores) memory."""
        time, energy = self.weights
        return _native.MappingGroup(
            self.latency, self.demand, self.energy, time_weight=time, energy_weight=energy
        )

    def decode(self, core: Cores, priority: Priorities) -> Queues:
        """Decode genomes to queues, row by row; a job on a core that cannot run it goes to the next
        core that can."""
        return self.native.decode(core, priority)

    def makespans(self, queues: Queues, threads: int = 1) -> Floats:
        """Makespans of rows of queues in seconds."""
        return self.native.makespans(queues, threads)

    def energy_of(self, core: NDArray[np.integer]) -> float:
        """Joules if job ``j`` runs on ``core[j]``; NaN if energies are not known."""
        if self.energy is None:
            return np.nan
        return float(self.energy[np.arange(self.jobs), core].sum())

    def is_frugal(self, core: NDArray[np.integer]) -> bool:
        """Whether every job runs where it takes the least energy."""
        if self.energy is None:
            return False
        least = np.where(self.allowed, self.energy, np.inf).min(axis=1)
        return bool((self.energy[np.arange(self.jobs), core] <= least).all())

    def score(self, makespan: float, energy: float) -> float:
        """Score of a mapping: makespan and energy to the powers of the weights."""
        # As `Objective::score` in src/native/mapping/genome.cpp; tests/test_twins.py holds the two
        # together.
        time_weight, energy_weight = self.weights
        if energy_weight == 0.0:
            return makespan
        return energy if time_weight == 0.0 else makespan**time_weight * energy**energy_weight


def group_of(
    analysis: JobAnalysis,
    bandwidth: float,
    allocator: str = "demand",
    weights: tuple[float, float] = (1.0, 0.0),
) -> Group:
    """Make the group of a job analysis table and a system bandwidth in bytes/s.

    ``demand`` is M3E's allocator: jobs that together demand S times the bandwidth all progress at
    1/S. ``even`` gives every core an equal share, so that jobs do not affect one another.

    Raises
    ------
    MappingError
        If a figure is malformed, a job can run on no core, or the objective needs missing energies.
    """
    check(analysis)
    if not bandwidth > 0:
        raise MappingError(f"system bandwidth {bandwidth!r}: give bytes per second, more than zero")
    require_known("allocator", allocator, ALLOCATORS, MappingError)
    if weights[1] and analysis.energy is None:
        raise MappingError(
            "this objective needs energies, and the cost model gives none: use another objective or"
            " another --cost"
        )
    runs = np.isfinite(analysis.latency)
    with np.errstate(over="ignore", invalid="ignore"):
        demand = np.where(runs, analysis.bandwidth, 0.0) / bandwidth
        latency = analysis.latency
        if allocator == "even":
            latency = latency * np.maximum(1.0, demand * len(analysis.cores))
            demand = np.zeros_like(demand)
        span = float(
            (np.where(runs, latency, 0.0) * np.maximum(1.0, demand)).max(axis=1).sum()
        ) * len(analysis.cores)
        wanted = float(demand.sum())
    if not (wanted < _FAR and span < _FAR):
        raise MappingError(
            f"system bandwidth {bandwidth:g} B/s: far too small for what the jobs ask for, or jobs"
            " take far too long"
        )
    energy = None if analysis.energy is None else np.where(runs, analysis.energy, 0.0)
    return Group(np.ascontiguousarray(latency), np.ascontiguousarray(demand), energy, weights)


def check(analysis: JobAnalysis) -> None:
    """Check a job analysis.

    Raises
    ------
    MappingError
        Naming the job, the core and the figure at fault.
    """
    shape = (len(analysis.jobs), len(analysis.cores))
    if not analysis.cores:
        raise MappingError("there are no cores: give a target with at least one")
    if not analysis.jobs:
        raise MappingError("there are no jobs: give at least one")
    if shape[0] > _MOST_JOBS or shape[1] > _MOST_CORES:
        raise MappingError(
            f"{shape[0]} jobs on {shape[1]} cores: at most {_MOST_JOBS} jobs on {_MOST_CORES} cores"
            " are mapped together"
        )
    runs = np.isfinite(analysis.latency)
    for name in ("latency", "bandwidth", "energy"):
        table = getattr(analysis, name)
        if table is None:
            continue
        if table.shape != shape:
            raise MappingError(
                f"{name}: has the shape {table.shape} for {shape[0]} jobs and {shape[1]} cores"
            )
        # Only latencies may be infinite; other figures are ignored where a job cannot run.
        wrong = np.isnan(table) | (table < 0) | (np.isinf(table) & (name != "latency"))
        wrong &= runs | (name == "latency")
        if wrong.any():
            job, core = (int(at) for at in np.argwhere(wrong)[0])
            where = f"job {analysis.jobs[job]!r} on core {analysis.cores[core]!r}"
            raise MappingError(
                f"{where}: its {name} is {table[job, core]}: give a number of at least 0"
            )
    somewhere = runs.any(axis=1)
    if not somewhere.all():
        raise MappingError(
            f"job {analysis.jobs[int(somewhere.argmin())]!r}: no core can run it: its latency is"
            " infinite on all"
        )
    if analysis.flops.shape != shape[:1]:
        raise MappingError(f"flops: has the shape {analysis.flops.shape} for {shape[0]} jobs")


def queues_of(core: NDArray[np.integer], order: NDArray[np.integer], cores: int) -> Queues:
    """Return one row of queues: job ``j`` on ``core[j]``, each core's jobs in ``order``."""
    jobs = len(core)
    entries = np.append(order, np.full(cores, jobs))
    owner = np.append(core[order], np.arange(cores))
    return entries[np.argsort(owner, kind="stable")].astype(np.int32)[None]


def core_and_position(queues: Queues, cores: int) -> tuple[Ints, Ints]:
    """Core of every job of a row, and its position in that core's queue, from 0."""
    row = queues.reshape(-1).astype(np.int64)
    jobs = len(row) - cores
    here, ends = np.flatnonzero(row < jobs), np.flatnonzero(row == jobs)
    at = np.empty(jobs, dtype=np.int64)
    at[row[here]] = here
    core = np.repeat(np.arange(cores), np.diff(ends, prepend=-1))[at]
    return core, at - np.append(-1, ends)[core] - 1


def genome_of(queues: Queues, cores: int) -> tuple[Cores, Priorities]:
    """Return a genome that decodes to a row of queues, with evenly spread priorities."""
    core, position = core_and_position(queues, cores)
    length = np.bincount(core, minlength=cores)[core]
    return core.astype(np.int32), ((position + 0.5) / length * 2.0**32).astype(np.uint32)
