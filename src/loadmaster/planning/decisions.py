"""What the engines find: a schedule, a placement, a timeline, a packing, a bound. Jobs and tensors
are indices into the workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from loadmaster.core.arrays import Floats, Int32s, Ints, Mask


class Score(NamedTuple):
    """What plans are compared by, field by field: smaller is better.

    Bytes of memory 0 that are wanting, picoseconds of lateness of all mini-batches together, the
    objective (picoseconds, femtojoules, or their product), and the makespan in picoseconds.
    """

    overflow: int
    lateness: int
    objective: int
    makespan: int


@dataclass(frozen=True)
class Schedule:
    """Which core runs each job and in which order.

    ``core[j]`` is the core of job ``j``; each core runs its jobs in the order in which they appear
    in ``order``.
    """

    core: Int32s
    order: Ints


@dataclass(frozen=True)
class Copy:
    """A tensor's copy from one memory to another, a task of its own: after some tasks, before some
    jobs."""

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
    """Which memories operands are read from and written to, the copies between memories, and the
    stays of tensors in them.

    ``used[m, i]`` says whether row ``i`` of the job table moves bytes of memory ``m``.
    """

    used: Mask
    copies: tuple[Copy, ...]
    residences: tuple[Residence, ...]


@dataclass(frozen=True)
class Packing:
    """Offsets in one memory, -1 where a buffer found no place.

    ``peak`` is the highest address used, ``load`` the most bytes alive at once.
    """

    offsets: Ints
    peak: int
    load: int


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
    """``picoseconds`` that any plan takes, what says so, and the bytes that must cross the main
    memory's link.

    ``terms`` are all bounds of which it is the largest, by what says so.
    """

    picoseconds: int
    limit: str
    main_bytes: int
    terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Bounds:
    """What any plan takes: its makespan, femtojoules, and for every network the picoseconds of its
    longest latency."""

    makespan: MakespanBound
    energy: int
    latency: dict[str, int]

    def objective(self, name: str, latency_network: str | None) -> int:
        """What an objective cannot go below: picoseconds, femtojoules, or their product;
        ``latency_network`` is whose latency counts."""
        if name == "latency":
            assert latency_network is not None
            return self.latency[latency_network]
        if name == "throughput":
            return self.makespan.picoseconds
        return self.energy * (self.makespan.picoseconds if name == "edp" else 1)


@dataclass(frozen=True)
class Packed:
    """Stays in one memory with their times in picoseconds, offsets and sizes in bytes, and the most
    bytes alive at once."""

    residences: tuple[Residence, ...]
    start: list[int]
    end: list[int]
    offsets: list[int]
    sizes: list[int]
    load: int


@dataclass(frozen=True)
class Solution:
    """Decisions that fit together: simulated, with an address for everything; ``packed`` is by
    memory.

    ``after`` lists for every task the tasks that must have ended before it starts. ``search`` tells
    how it was found: the score of every improvement, with the evaluations made up to then.
    """

    schedule: Schedule
    placement: Placement
    timeline: Timeline
    packed: tuple[Packed, ...]
    after: tuple[tuple[int, ...], ...]
    search: tuple[tuple[int, Score], ...] = ()
