"""Records of mappings: core and position of every job, objective, bound, and search effort."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.csv_cells import read_text
from loadmaster.core.errors import MappingError
from loadmaster.core.files import replace_file
from loadmaster.core.json_object import ABSENT, json_of
from loadmaster.core.provenance import CostBasis, Provenance, costs_of
from loadmaster.core.record_json import parse_object, record_from
from loadmaster.core.registry import DisplayMixin, Status
from loadmaster.workloads.job import MiniBatch

_GIVE = "give what `loadmaster map --json` printed, or mapping.json of --out"


@dataclass(frozen=True)
class MappedJob:
    """A job."""

    job: str
    """Name of the job."""
    core: str
    """Name of its core."""
    position: int
    """Index in the core's queue, from 0."""
    group: int
    """Index of its group, from 0."""
    start: float
    """When it begins, in seconds."""
    end: float
    """When it ends, in seconds."""


@dataclass(frozen=True)
class MappingJson:
    """A mapping, as `loadmaster map --json` prints it for one objective."""

    status: Status
    """How good the answer is: `optimal` is proven, `feasible` holds but is not proven to be the
    best."""
    objective: str
    """What was minimised."""
    makespan: float
    """Seconds until the last job ends."""
    cycles: int | None
    """The makespan in cycles of the clock that all cores share, rounded up; null without one."""
    throughput: float | None
    """Operations per second; a multiply-accumulate is two. Null where no job's operations are
    known."""
    energy: float | None
    """Joules; null where they are not known."""
    value: float
    """Value of the objective: seconds for makespan, throughput and latency, joules for energy,
    joule-seconds for edp."""
    lower_bound: float
    """Lower bound for all mappings of these jobs, in the unit of `value`."""
    gap: float | None
    """Relative distance of the value from its lower bound; null if only the bound is 0."""
    limit: str
    """The argument that the lower bound comes from; the wording is not stable."""
    samples: int
    """Number of mappings that were evaluated."""
    seconds: float
    """Seconds of wall-clock time that the command's work took."""
    cpu_seconds: float
    """Seconds of processor time that the command's work took, of all threads."""
    strategy: str
    """Name of the strategy that found the answer."""
    seed: int
    """Seed of the search: the same input and seed give the same answer."""
    interrupted: bool
    """Whether a time limit or Ctrl-C ended the work early."""
    costs: CostBasis
    """What the costs rest on."""
    groups: int
    """Number of groups of jobs that run one after another."""
    convergence: Sequence[Sequence[Sequence[float]]]
    """By group, every improvement as a pair of samples taken and value."""
    jobs: Sequence[MappedJob]
    """Every job."""


@dataclass(frozen=True, slots=True)
class MappedBatch(MiniBatch):
    """A mini-batch."""

    deadline: float | None
    """Seconds after its release that it is due; null if never."""


@dataclass(frozen=True)
class MapJson(MappingJson):
    """A mapping of jobs to cores, for one objective."""

    VERSION = 1
    mini_batches: Sequence[MappedBatch] = ABSENT
    """Every mini-batch, if networks have deadlines or periods."""


@dataclass(frozen=True)
class FrontJson:
    """A Pareto front of mappings for several objectives."""

    VERSION = 1
    objectives: Sequence[str]
    """The objectives."""
    front: Sequence[MappingJson]
    """The mappings."""


@dataclass(frozen=True, eq=False, repr=False)
class JobMapping(DisplayMixin):
    """A mapping: core and position of every job.

    Attributes
    ----------
    status
        ``optimal``: exact arithmetic confirms that no mapping is better by a picosecond or a
        billionth. ``feasible``: not proven to be the best.
    jobs, cores
        Names, as in the job analysis.
    core, position, group
        Of every job: index of its core, its place in that core's queue from 0, and the group that
        it is in; groups run one after another.
    start, end
        Seconds, of every job.
    makespan, energy, flops
        Seconds; joules, None where not known; operations of all jobs (multiplications and
        additions), 0 where not known.
    objective, value, lower_bound
        The objective, its value, and the lower bound for all mappings of these jobs in these
        groups: seconds for makespan and throughput (the work is fixed), joules, or joule-seconds.
    history
        Samples taken and value at every improvement; over several groups, of each.
    seconds, cpu_seconds
        Of the search, bounds included.
    interrupted
        A time limit or an interrupt ended the search; without one the answer is the same on every
        machine.
    costs
        Provenance of the costs of jobs.
    """

    status: Status
    jobs: tuple[str, ...]
    cores: tuple[str, ...]
    core: Ints
    position: Ints
    group: Ints
    start: Floats
    end: Floats
    makespan: float
    energy: float | None
    flops: int
    objective: str
    value: float
    lower_bound: float
    limit: str
    strategy: str
    seed: int
    samples: int
    history: tuple[tuple[tuple[int, float], ...], ...]
    seconds: float
    cpu_seconds: float
    clock: float | None = None
    interrupted: bool = False
    costs: tuple[Provenance, ...] = ()

    @property
    def gap(self) -> float:
        """Relative distance of the value from the bound; 0 if both are 0."""
        if self.value <= self.lower_bound:
            return 0.0
        return self.value / self.lower_bound - 1 if self.lower_bound > 0 else float("inf")

    @property
    def throughput(self) -> float | None:
        """Operations/s, None where no job's operations are known."""
        return self.flops / self.makespan if self.flops and self.makespan > 0 else None

    @property
    def cycles(self) -> int | None:
        """The makespan in cycles of the clock that all cores share, rounded up, or None."""
        if self.clock is None:
            return None
        return int(np.ceil(self.makespan * self.clock * (1 - 1e-12)))

    def rows(self) -> list[MappedJob]:
        """Return a record of every job."""
        columns = (self.position, self.group, self.start, self.end)
        cores = [self.cores[core] for core in self.core.tolist()]
        return list(map(MappedJob, self.jobs, cores, *(column.tolist() for column in columns)))

    def as_json(self) -> dict[str, Any]:
        """What ``loadmaster map --json`` prints."""
        return json_of(
            self,
            MappingJson,
            costs=costs_of(self.costs),
            groups=int(self.group.max()) + 1,
            convergence=self.history,
            jobs=self.rows(),
        )

    def save(self, path: str | Path) -> None:
        """Write the JSON and its version, which :func:`read_warm_start` reads.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        replace_file(
            path,
            json.dumps({"version": MapJson.VERSION, **self.as_json()}, indent=1, allow_nan=False)
            + "\n",
            "the mapping",
        )


@dataclass(frozen=True)
class WarmStart:
    """A warm start from an earlier mapping: by job name, the core's name and the relative position
    in its queue, between 0 and 1."""

    source: str
    jobs: tuple[str, ...]
    core: tuple[str, ...]
    place: tuple[float, ...]


def warm_start_of(rows: Sequence[MappedJob], source: str = "mapping") -> WarmStart:
    """Return the jobs of a mapping as a start: the core of each, and its place in the core's queue
    from 0 to 1."""
    # The last position of a queue is the largest, and the last that the dictionary is given.
    ordered = sorted(rows, key=attrgetter("position"))
    length = {(row.core, row.group): row.position + 1 for row in ordered}
    return WarmStart(
        source,
        tuple(row.job for row in rows),
        tuple(row.core for row in rows),
        tuple((row.position + 0.5) / length[row.core, row.group] for row in rows),
    )


def read_warm_start(path: str | Path) -> WarmStart:
    """Read the warm start from a file that ``loadmaster map`` wrote.

    Raises
    ------
    MappingError
        If it is no such file.
    """
    what = "mapping that `loadmaster map` wrote"
    found = parse_object(read_text(path, MappingError), str(path), what, MappingError)
    if "front" in found:
        raise MappingError(f"{path}: holds a front of mappings: {_GIVE} of one objective")
    rows = found.get("jobs")
    if not isinstance(rows, list):
        raise MappingError(f"{path}: has no list of jobs; {_GIVE}")
    jobs = [
        record_from(row, MappedJob, f"{path}: {_GIVE}; jobs.{number}", "job", MappingError)
        for number, row in enumerate(rows)
    ]
    return warm_start_of(jobs, str(path))
