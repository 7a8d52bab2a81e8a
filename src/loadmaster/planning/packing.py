"""Packs the stays of a plan into one memory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints, column_of
from loadmaster.core.effort import Effort
from loadmaster.core.progress import Deadline
from loadmaster.cost.base import JobTable
from loadmaster.planning.decisions import Packed, Placement, Residence, Timeline
from loadmaster.workloads.job import TensorInstance, Workload

_FEW = 1500
"""Most buffers for which exact search is tried after the orders: for more it takes longer than
another plan with less room."""


def pack(
    start: Ints,
    end: Ints,
    size: Ints,
    *,
    capacity: int,
    alignment: int,
    enough: int | None = None,
    effort: Effort = Effort.NORMAL,
    seconds: float = math.inf,
) -> Ints:
    """Give each buffer an offset so that no two alive at once overlap and none ends past
    ``capacity``; -1 to those that are left out, if no such offsets are found for all.

    Buffers are alive over [start, end), at least for an instant, and take ``size`` bytes at a
    multiple of ``alignment``. First-fit orders are tried until one has a peak of at most ``enough``
    (by default the capacity), then, for at most 1,500 buffers, exact search. After ``seconds`` no
    further order or search is begun. Time grows a little faster than n, memory with n.
    """
    deadline = Deadline.within(seconds)
    none, one = np.full(len(size), -1, dtype=np.int64), np.ones(len(size), dtype=np.int64)
    # In units of the alignment no buffer has to be aligned; the highest may end inside a unit.
    units = Problem(start, np.maximum(end, start + 1), -(-size // alignment), one, none, none)
    native, goal = packing_problem(units), capacity if enough is None else min(enough, capacity)
    first = found = native.greedy(seconds=deadline.left(), enough=goal // alignment)
    offsets: Ints = first.offsets * alignment
    rooms = dict.fromkeys((capacity // alignment, -(-capacity // alignment)))
    for room in rooms if len(size) <= _FEW else ():
        fits = int((offsets + size).max(initial=0)) <= capacity
        if found.interrupted or fits or not deadline.left():
            break
        found = native.exact(room, first.offsets, nodes=effort.nodes, seconds=deadline.left())
        if found.status == "feasible":
            offsets = found.offsets * alignment
    if found.interrupted:
        raise KeyboardInterrupt
    if int((offsets + size).max(initial=0)) <= capacity:
        return offsets
    fitting = native.place_what_fits(np.argsort(first.offsets, kind="stable"), next(iter(rooms)))
    return np.where(fitting < 0, -1, fitting * alignment)


class PackingCache:
    """Caches results of :func:`pack` for plans of the same jobs.

    Searches that start alike reach the same plans, and packing may take longer than all else.
    Results with a time limit are not cached.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Ints] = {}

    def get_or_pack(self, *stays: Ints, seconds: float, **options: Any) -> Ints:
        """Return the offsets of stays, from the cache if they are known."""
        if seconds < math.inf:
            return pack(*stays, **options, seconds=seconds)
        columns = [column.tobytes() for column in stays]
        key = blake2b(b" ".join([repr(options).encode(), *columns])).digest()
        if key not in self._known:
            self._known[key] = pack(*stays, **options)
        return self._known[key]


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
        return _timed(residences, [workload.tensors[r.tensor].bytes for r in residences], timeline)

    def packed(self, offsets: Ints) -> Packed:
        """Combine the stays with their offsets."""
        columns = (self.start, self.end, self.sizes)
        start, end, sizes = (column.tolist() for column in columns)
        load = most_alive(*columns)
        return Packed(self.residences, start, end, offsets.tolist(), sizes, load)


def retimed(packed: Packed, timeline: Timeline) -> Packed:
    """Keep addresses and take lifetimes from another timeline."""
    stays = _timed(packed.residences, packed.sizes, timeline)
    return stays.packed(np.array(packed.offsets, dtype=np.int64))


def _timed(residences: tuple[Residence, ...], sizes: Sequence[int], timeline: Timeline) -> Stays:
    """Residences with lifetimes from a timeline; a tensor without readers is alive while it is
    written."""
    writer = column_of(residences, "writer", np.int64)
    ends, makespan = timeline.end.tolist(), timeline.makespan
    last = [
        makespan if stay.to_the_end else max(map(ends.__getitem__, stay.users), default=0)
        for stay in residences
    ]
    # What is there from the beginning has the writer -1: the last of these.
    start, written = (np.append(times, 0)[writer] for times in (timeline.start, timeline.end))
    end = np.maximum(written, np.array(last, dtype=np.int64))
    return Stays(residences, start, end, np.array(sizes, dtype=np.int64))


def evict(
    evicted: Collection[Residence],
    placement: Placement,
    timeline: Timeline,
    tensors: Sequence[TensorInstance],
    table: JobTable,
) -> tuple[Placement, Timeline]:
    """Remove stays of the fast memory from a placement, and their fetches from the timeline.

    Jobs that used an evicted stay use main memory instead. Starts and ends of the other tasks are
    unchanged. O(operands + tasks + users of all stays).
    """
    gone, jobs = set(evicted), len(table.compute)
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
