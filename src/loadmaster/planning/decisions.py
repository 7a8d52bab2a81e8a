"""Records of decisions and results: schedule, placement, timeline, packing, bounds. Jobs and
tensors are indices into the workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import Floats, Int32s, Ints, Mask, column_of
from loadmaster.cost.base import JobTable
from loadmaster.workloads.job import Workload


class Score(NamedTuple):
    """The score of a plan, compared lexicographically: smaller is better.

    ``overflow``: bytes by which the plan exceeds main memory. ``lateness``: picoseconds, summed
    over mini-batches. ``objective``: picoseconds, femtojoules, or their product. ``makespan``:
    picoseconds.
    """

    overflow: int
    lateness: int
    objective: int
    makespan: int


@dataclass(frozen=True)
class Schedule:
    """The core of every job, and the order of jobs.

    ``core[j]`` is the core of job ``j``; each core runs its jobs in the order in which they appear
    in ``order``.
    """

    core: Int32s
    order: Ints


@dataclass(frozen=True)
class MemoryCopy:
    """A copy of a tensor from memory ``source`` to ``memory``, which starts after the tasks
    ``after`` and ends before the jobs ``before`` start."""

    tensor: int
    source: int
    memory: int
    after: tuple[int, ...]
    before: tuple[int, ...]


@dataclass(frozen=True)
class Residence:
    """A stay of a tensor in a memory.

    It lasts from the start of task ``writer`` (-1: from the beginning) until the last of ``users``
    ends, or to the end of the plan if the tensor must be found there afterwards. Tasks are jobs,
    then copies.
    """

    tensor: int
    memory: int
    writer: int
    users: tuple[int, ...]
    to_the_end: bool = False


@dataclass(frozen=True)
class Placement:
    """The memories that operands are read from and written to, the copies between memories, and
    the residences of tensors in them.

    ``used[m, i]`` says whether row ``i`` of the job table moves bytes of memory ``m``.
    """

    used: Mask
    copies: tuple[MemoryCopy, ...]
    residences: tuple[Residence, ...]


@dataclass(frozen=True)
class Timeline:
    """Start and end of every task (jobs, then copies) in integer picoseconds, and use of the links.

    From ``time[i]`` picoseconds to ``time[i + 1]``, ``load[i, l]`` of link ``l``'s time is in use,
    for ``rate[i, l]`` bytes/s.
    """

    start: Ints
    end: Ints
    time: Ints
    load: Floats
    rate: Floats

    @property
    def makespan(self) -> int:
        """End of the last task, in picoseconds."""
        return int(self.end.max(initial=0))


def most_alive(start: Ints, end: Ints, size: Ints) -> int:
    """Most bytes alive at once. At one instant, ends precede starts; an empty lifetime counts as
    an instant."""
    times = np.concatenate([np.maximum(end, start + 1), start])
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(np.concatenate([-size, size])[order]).max(initial=0))


@dataclass(frozen=True)
class Stays:
    """Residences in one memory with their lifetimes in picoseconds, and sizes and offsets in bytes,
    shape (residences,); the offset is -1 where there is none."""

    residences: tuple[Residence, ...]
    start: Ints
    end: Ints
    sizes: Ints
    offsets: Ints

    @staticmethod
    def of(
        workload: Workload, placement: Placement, timeline: Timeline, memory_index: int
    ) -> Stays:
        """Collect the residences of a placement in one memory, with lifetimes from a timeline."""
        residences = tuple(r for r in placement.residences if r.memory == memory_index)
        sizes = np.array([workload.tensors[r.tensor].bytes for r in residences], dtype=np.int64)
        none = np.full_like(sizes, -1)
        return Stays(residences, none, none, sizes, none).timed(timeline)

    def timed(self, timeline: Timeline) -> Stays:
        """Take lifetimes from a timeline; a tensor without readers is alive while it is written."""
        ends, makespan = timeline.end.tolist(), timeline.makespan
        last = [
            makespan if stay.to_the_end else max(map(ends.__getitem__, stay.users), default=0)
            for stay in self.residences
        ]
        # What is there from the beginning has the writer -1: the last of these.
        writer = column_of(self.residences, "writer", np.int64)
        start, written = (np.append(times, 0)[writer] for times in (timeline.start, timeline.end))
        return replace(self, start=start, end=np.maximum(written, np.array(last, dtype=np.int64)))

    def of_operands(self, table: JobTable) -> Ints:
        """The stay that each row of a table uses, -1 for none. O(operands + users)."""
        used = {
            (job, stay.tensor): number
            for number, stay in enumerate(self.residences)
            for job in (stay.writer, *stay.users)
        }
        rows = zip(table.operand_job.tolist(), table.operand_tensor.tolist(), strict=True)
        return np.array([used.get(row, -1) for row in rows], dtype=np.int64)

    @property
    def load(self) -> int:
        """Most bytes alive at once."""
        return most_alive(self.start, self.end, self.sizes)


@dataclass(frozen=True)
class MakespanBound:
    """A lower bound of the makespan, and the bytes that must cross the main memory's link.

    ``terms`` are bounds in picoseconds, each with the argument that it comes from: the largest
    holds, of equal ones the first.
    """

    main_bytes: int
    terms: tuple[tuple[str, int], ...]

    @property
    def limit(self) -> str:
        """The argument that the largest bound comes from."""
        return max(self.terms, key=lambda term: term[1])[0]

    @property
    def picoseconds(self) -> int:
        """The largest bound."""
        return max(picoseconds for _, picoseconds in self.terms)

    def beside(self, limit: str, picoseconds: int) -> MakespanBound:
        """Return the largest of these bounds and another."""
        return replace(self, terms=(*self.terms, (limit, picoseconds)))


@dataclass(frozen=True)
class Bounds:
    """Lower bounds that hold for any plan: makespan, energy in femtojoules, and for every network
    its longest latency in picoseconds."""

    makespan: MakespanBound
    energy: int
    latency: dict[str, int]

    def objective(self, name: str, latency_network: str | None) -> int:
        """Lower bound of the objective ``name``: picoseconds, femtojoules, or their product;
        ``latency_network`` is the network of the objective ``latency``."""
        if name == "latency":
            assert latency_network is not None
            return self.latency[latency_network]
        if name == "throughput":
            return self.makespan.picoseconds
        return self.energy * (self.makespan.picoseconds if name == "edp" else 1)


@dataclass(frozen=True)
class Solution:
    """A complete plan of the jobs: schedule, placement, simulated timeline, and addresses
    (``packed``, by memory).

    ``after`` lists for every task the tasks that must have ended before it starts. ``search`` lists
    the improvements of the search: evaluations so far, and the score.
    """

    schedule: Schedule
    placement: Placement
    timeline: Timeline
    packed: tuple[Stays, ...]
    after: tuple[tuple[int, ...], ...]
    search: tuple[tuple[int, Score], ...] = ()
