"""Records of decisions and results: schedule, placement, timeline, packing, bounds. Jobs and
tensors are indices into the workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from loadmaster.core.arrays import Floats, Int32s, Ints, Mask


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
class Packed:
    """Residences in one memory with their lifetimes in picoseconds, offsets and sizes in bytes;
    ``load`` is the most bytes alive at once."""

    residences: tuple[Residence, ...]
    start: list[int]
    end: list[int]
    offsets: list[int]
    sizes: list[int]
    load: int


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
    packed: tuple[Packed, ...]
    after: tuple[tuple[int, ...], ...]
    search: tuple[tuple[int, Score], ...] = ()
