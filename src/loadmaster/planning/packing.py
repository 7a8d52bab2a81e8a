"""Packs the stays of a plan into one memory: all of them or, if that fails, the most valuable. The
others are evicted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from loadmaster import _native
from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.effort import Effort
from loadmaster.core.progress import Deadline
from loadmaster.cost.base import JobTable
from loadmaster.planning.decisions import Packed, Packing, Placement, Residence, Schedule, Timeline
from loadmaster.workloads.job import TensorInstance, Workload

_FEW = 1500
"""Number of buffers up to which exact search is always tried after the orders."""
_NEAR = 1.05
"""For more buffers it is tried only if the peak of the best order is within this factor of the
capacity: from further away it fails."""


def pack(
    start: Ints,
    end: Ints,
    size: Ints,
    *,
    capacity: int,
    alignment: int,
    enough: int | None = None,
    whole: bool = False,
    value: Floats | None = None,
    effort: Effort = Effort.NORMAL,
    seconds: float = math.inf,
) -> Packing:
    """Give each buffer an offset so that no two alive at once overlap and none ends past
    ``capacity``.

    Buffers are alive over [start, end), at least for an instant, and take ``size`` bytes at a
    multiple of ``alignment``. First-fit orders are tried until one has a peak of at most ``enough``
    (by default the capacity), then exact search. If these do not place all buffers, each of four
    orders places one buffer after another at its lowest free gap: longest-lived first, largest
    first (as TensorFlow Lite), largest area first, and by start. The order that loses the least
    ``value`` (by default bytes) wins; buffers that do not fit get -1. With ``whole``, either all
    buffers are placed or all get -1. After ``seconds`` no further order or search is begun. Time
    grows a little faster than n, memory with n.
    """
    deadline = Deadline.within(seconds)
    units = _Units.of(start, end, size, alignment)
    # With many buffers, leaving out a few costs less than the search that would place them.
    searched = whole or len(size) <= _FEW
    offsets = units.all(
        capacity, capacity if enough is None else enough, seconds, effort.nodes, searched=searched
    )
    if offsets is None:
        worth = size.astype(np.float64) if value is None else value
        least, offsets = np.inf, np.full(len(size), -1, dtype=np.int64)
        for order in () if whole else _orders(start, np.maximum(end, start + 1), size):
            candidate = units.what_fits(order, capacity)
            lost = float(worth[candidate < 0].sum())
            if lost < least:
                least, offsets = lost, candidate
            if (candidate >= 0).all() or deadline.passed():
                break
    peak = int((offsets + size)[offsets >= 0].max(initial=0))
    return Packing(offsets, peak, most_alive(start, end, size))


class PackingCache:
    """Caches results of :func:`pack` for plans of the same jobs.

    Searches that start alike reach the same plans, and packing may take longer than all else.
    Results with a time limit are not cached.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Packing] = {}

    def get_or_pack(self, *stays: Ints, seconds: float, **options: Any) -> Packing:
        """Return the packing of stays, from the cache if it is known."""
        if seconds < math.inf:
            return pack(*stays, **options, seconds=seconds)
        words = [
            option.tobytes() if isinstance(option, np.ndarray) else repr(option).encode()
            for option in options.values()
        ]
        columns = [column.tobytes() for column in stays]
        key = blake2b(b" ".join([repr((*options,)).encode(), *columns, *words])).digest()
        if key not in self._known:
            self._known[key] = pack(*stays, **options)
        return self._known[key]


@dataclass(frozen=True)
class _Units:
    """A packing problem with sizes in units of the common alignment, so that no buffer has to be
    aligned."""

    problem: Problem
    unit: int
    size: Ints

    @staticmethod
    def of(start: Ints, end: Ints, size: Ints, alignment: int) -> _Units:
        """Return the problem of buffers alive over [start, end), at least for an instant."""
        none = np.full(len(size), -1, dtype=np.int64)
        one = np.ones(len(size), dtype=np.int64)
        return _Units(
            Problem(start, np.maximum(end, start + 1), -(-size // alignment), one, none, none),
            alignment,
            size,
        )

    @cached_property
    def _native(self) -> _native.PackingProblem:
        """The packing problem in native code."""
        return packing_problem(self.problem)

    def rooms(self, capacity: int) -> list[int]:
        """The capacity in units, rounded down, then up: the highest buffer may end inside a
        unit."""
        return list(dict.fromkeys((capacity // self.unit, -(-capacity // self.unit))))

    def all(
        self, capacity: int, enough: int, seconds: float, nodes: int, searched: bool
    ) -> Ints | None:
        """Offsets of all buffers, or None if the orders and, if ``searched``, exact search find
        none."""
        deadline = Deadline.within(seconds)
        problem = self.problem
        if most_alive(problem.lower, problem.upper, problem.size) > -(-capacity // self.unit):
            return None
        native = self._native
        first = native.greedy(seconds=deadline.left(), enough=min(enough, capacity) // self.unit)
        if first.interrupted:
            raise KeyboardInterrupt
        if (fitting := self._within(first.offsets, capacity)) is not None:
            return fitting
        search = searched and (len(problem) <= _FEW or first.peak * self.unit <= capacity * _NEAR)
        for room in self.rooms(capacity) if search and deadline.left() else ():
            found = native.exact(room, first.offsets, nodes=nodes, seconds=deadline.left())
            if found.interrupted:
                raise KeyboardInterrupt
            if (
                found.status == "feasible"
                and (fitting := self._within(found.offsets, capacity)) is not None
            ):
                return fitting
        return None

    def what_fits(self, order: Ints, capacity: int) -> Ints:
        """Place each buffer in turn at its lowest gap; offset -1 for buffers that would end past
        the capacity."""
        offsets = self._native.place_what_fits(order, capacity // self.unit)
        return np.where(offsets < 0, -1, offsets * self.unit)

    def _within(self, offsets: Ints, capacity: int) -> Ints | None:
        """Convert offsets to bytes; None if a buffer ends past the capacity."""
        found: Ints = offsets * self.unit
        return found if int((found + self.size).max(initial=0)) <= capacity else None


def _orders(start: Ints, end: Ints, size: Ints) -> list[Ints]:
    """Return orders in which to place blocks: by size, by lifetime, by area, and by size with the
    earliest first; the first key of each is the last criterion."""
    length, index = end - start, np.arange(len(size))
    keys = [
        (index, -size, -length),
        (index, -length, -size),
        (index, -(size.astype(np.float64) * length)),
        (index, -size, start),
    ]
    return [np.lexsort(key) for key in keys]


def most_alive(start: Ints, end: Ints, size: Ints) -> int:
    """Most bytes alive at once. At one instant, ends precede starts; an empty lifetime counts as
    an instant."""
    times = np.concatenate([np.maximum(end, start + 1), start])
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(np.concatenate([-size, size])[order]).max(initial=0))


@dataclass(frozen=True)
class Stays:
    """Residences to be packed in one memory, with lifetimes in picoseconds and sizes in bytes,
    shape (residences,)."""

    residences: tuple[Residence, ...]
    start: Ints
    end: Ints
    sizes: Ints

    @staticmethod
    def of(
        workload: Workload, placement: Placement, timeline: Timeline, memory_index: int
    ) -> Stays:
        """Collect the residences of a placement in one memory, with lifetimes from a timeline."""
        residences = tuple(r for r in placement.residences if r.memory == memory_index)
        columns = (
            *_lifetimes(residences, timeline),
            [workload.tensors[r.tensor].bytes for r in residences],
        )
        return Stays(residences, *(np.array(column, dtype=np.int64) for column in columns))

    def packed(self, result: Packing) -> Packed:
        """Combine the stays with the offsets of a packing."""
        return Packed(
            self.residences,
            self.start.tolist(),
            self.end.tolist(),
            result.offsets.tolist(),
            self.sizes.tolist(),
            result.load,
        )


def retimed(packed: Packed, timeline: Timeline) -> Packed:
    """Keep addresses and take lifetimes from another timeline."""
    start, end = _lifetimes(packed.residences, timeline)
    return replace(
        packed,
        start=start,
        end=end,
        load=most_alive(
            *(np.array(column, dtype=np.int64) for column in (start, end, packed.sizes))
        ),
    )


def _lifetimes(residences: Sequence[Residence], timeline: Timeline) -> tuple[list[int], list[int]]:
    """Begin and end of residences in picoseconds; a tensor without readers is alive while it is
    written."""
    starts = timeline.start.tolist()
    ends = timeline.end.tolist()
    makespan = timeline.makespan
    begin = [starts[residence.writer] if residence.writer >= 0 else 0 for residence in residences]
    over = []
    for residence in residences:
        written = ends[residence.writer] if residence.writer >= 0 else 0
        last = (
            makespan
            if residence.to_the_end
            else max(map(ends.__getitem__, residence.users), default=0)
        )
        over.append(max(written, last))
    return begin, over


def worth_of_stays(
    residences: Sequence[Residence],
    tensors: Sequence[TensorInstance],
    table: JobTable,
    schedule: Schedule,
) -> Floats:
    """Bytes of main-link traffic that each stay saves: reads and an unneeded write, less its fetch.
    O(operands + users)."""
    moved = table.moved[np.arange(len(table.operand_job)), schedule.core[table.operand_job]]
    crossing: dict[tuple[int, int], int] = defaultdict(int)
    written: dict[int, int] = defaultdict(int)
    columns = (table.operand_job, table.operand_tensor, table.operand_write, moved)
    for job, tensor, write, size in zip(*(column.tolist() for column in columns), strict=True):
        if write:
            written[tensor] += size
        else:
            crossing[job, tensor] += size
    jobs = len(schedule.core)
    worth = []
    for stay in residences:
        saved = sum(crossing[job, stay.tensor] for job in stay.users)
        record = tensors[stay.tensor]
        fetched = stay.writer >= jobs
        saved += -record.bytes if fetched else 0 if record.is_output else written[stay.tensor]
        worth.append(max(0.0, float(saved)) + 1e-6 * record.bytes)
    return np.array(worth)


def evict(
    evicted: Collection[Residence],
    placement: Placement,
    timeline: Timeline,
    tensors: Sequence[TensorInstance],
    table: JobTable,
    jobs: int,
) -> tuple[Placement, Timeline]:
    """Remove stays of the fast memory from a placement, and their fetches from the timeline.

    Jobs that used an evicted stay use main memory instead. Starts and ends of the other tasks are
    unchanged. O(operands + tasks + users of all stays).
    """
    gone = set(evicted)
    kept_copies = sorted(
        set(range(len(placement.copies)))
        - {stay.writer - jobs for stay in gone if stay.writer >= jobs}
    )
    number = {jobs + old: jobs + new for new, old in enumerate(kept_copies)}

    def renamed(task: int) -> int:
        """Return the new number of a task."""
        return task if task < jobs else number[task]

    kept = [stay for stay in placement.residences if stay not in gone]
    streams: dict[int, list[int]] = defaultdict(list)
    for stay in evicted:
        streams[stay.tensor] += stay.users
    pairs = {(job, stay.tensor) for stay in evicted for job in stay.users}
    written = {stay.tensor for stay in evicted if stay.writer < jobs}
    columns = (table.operand_job, table.operand_tensor, table.operand_write)
    moved = [
        tensor in written if write else (job, tensor) in pairs
        for job, tensor, write in zip(*(column.tolist() for column in columns), strict=True)
    ]
    used = placement.used.copy()
    used[:, moved] = [[True], [False]]
    residences = []
    for stay in kept:
        users = tuple([renamed(task) for task in stay.users if task < jobs or task in number])
        if stay.memory == 0 and stay.tensor in streams:
            users = tuple(dict.fromkeys((*users, *streams.pop(stay.tensor))))
        residences.append(
            Residence(stay.tensor, stay.memory, renamed(stay.writer), users, stay.to_the_end)
        )
    residences += [
        Residence(tensor, 0, tensors[tensor].producer, tuple(dict.fromkeys(users)))
        for tensor, users in streams.items()
    ]
    tasks = np.array([*range(jobs), *(jobs + old for old in kept_copies)], dtype=np.int64)
    changed = Placement(
        used, tuple(placement.copies[old] for old in kept_copies), tuple(residences)
    )
    return changed, replace(timeline, start=timeline.start[tasks], end=timeline.end[tasks])
