"""Packs the stays of a plan into one memory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import compress

import numpy as np

from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Int32s, Ints, column_of
from loadmaster.core.effort import Effort
from loadmaster.core.progress import Deadline
from loadmaster.cost.base import JobTable
from loadmaster.planning.decisions import Placement, Residence, Stays, Timeline
from loadmaster.workloads.job import Workload

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
    worth: Callable[[], Ints] | None = None,
    enough: int | None = None,
    effort: Effort = Effort.NORMAL,
    seconds: float = math.inf,
) -> Ints:
    """Give each buffer an offset so that no two alive at once overlap and none ends past
    ``capacity``. If no such offsets are found for all, -1 to those that are left out, of little
    ``worth``, which is asked for only then; without worth, to all.

    Buffers are alive over [start, end), at least for an instant, and take ``size`` bytes at a
    multiple of ``alignment``. First-fit orders are tried until one has a peak of at most ``enough``
    (by default the capacity), then, for at most 1,500 buffers, exact search. After ``seconds`` no
    further order or search is begun. What is left out is improved by simulated annealing: one of
    these buffers takes the place of others. Time grows a little faster than n, memory with n.
    """
    deadline = Deadline.within(seconds)
    none, one = np.full(len(size), -1, dtype=np.int64), np.ones(len(size), dtype=np.int64)
    # In units of the alignment no buffer has to be aligned; the highest may end inside a unit.
    units = Problem(start, np.maximum(end, start + 1), -(-size // alignment), one, none, none)
    native, goal = packing_problem(units), capacity if enough is None else min(enough, capacity)
    first = found = native.greedy(seconds=deadline.left(), enough=goal // alignment)
    offsets: Ints = first.offsets * alignment
    room = capacity // alignment
    rooms = dict.fromkeys((room, -(-capacity // alignment)))
    for most in rooms if len(size) <= _FEW else ():
        if found.interrupted or (offsets + size).max(initial=0) <= capacity or not deadline.left():
            break
        found = native.exact(most, first.offsets, nodes=effort.nodes, seconds=deadline.left())
        if found.status == "feasible":
            offsets = found.offsets * alignment
    if found.interrupted:
        raise KeyboardInterrupt
    if (offsets + size).max(initial=0) <= capacity:
        return offsets
    if worth is None:
        return none
    value = np.maximum(worth(), 1.0)
    # The first order is the better one unless there are too many buffers to look at.
    orders = (np.argsort(key, kind="stable") for key in (first.offsets, -value))
    nodes = effort.nodes if deadline.left() else 0
    every = [native.place_what_fits(order, room, value, nodes) for order in orders]
    kept = max(every, key=lambda offsets: float(value[offsets >= 0].sum()))
    return np.where(kept < 0, -1, kept * alignment)


def saved_bytes(stays: Stays, placement: Placement, cores: Int32s, table: JobTable) -> Ints:
    """Bytes that each stay in the fast memory spares the main memory's link, shape (stays,): what
    its users move, less its fetch."""
    writer = column_of(stays.residences, "writer", np.int64)
    saved = np.where(writer >= len(table.compute), -stays.sizes, 0)
    only = np.flatnonzero(placement.used[1] & ~placement.used[0])
    np.add.at(
        saved, stays.of_operands(table)[only], table.moved[only, cores[table.operand_job[only]]]
    )
    return saved


def evict(
    stays: Stays, placement: Placement, timeline: Timeline, workload: Workload, table: JobTable
) -> tuple[Placement, Timeline]:
    """Remove stays without an offset from a placement, and their fetches from the timeline.

    Jobs that used an evicted stay use main memory instead. Starts and ends of the other tasks are
    unchanged. O(operands + tasks + users of all stays).
    """
    evicted, jobs = [*compress(stays.residences, stays.offsets < 0)], len(workload.jobs)
    gone, fetches = set(evicted), {stay.writer for stay in evicted if stay.writer >= jobs}
    tasks = [task for task in range(len(timeline.start)) if task not in fetches]
    number = {old: new for new, old in enumerate(tasks)}
    streams: dict[int, list[int]] = defaultdict(list)
    for stay in evicted:
        streams[stay.tensor] += stay.users
    used = placement.used.copy()
    used[:, np.append(stays.offsets < 0, False)[stays.of_operands(table)]] = [[True], [False]]
    residences = []
    for stay in placement.residences:
        if stay not in gone:
            users = tuple([number[task] for task in stay.users if task in number])
            if stay.memory == 0 and stay.tensor in streams:
                users = tuple(dict.fromkeys((*users, *streams.pop(stay.tensor))))
            writer = number.get(stay.writer, stay.writer)
            residences.append(replace(stay, writer=writer, users=users))
    residences += [
        Residence(tensor, 0, workload.tensors[tensor].producer, tuple(dict.fromkeys(users)))
        for tensor, users in streams.items()
    ]
    copies = tuple(placement.copies[task - jobs] for task in tasks[jobs:])
    changed = Placement(used, copies, tuple(residences))
    return changed, replace(timeline, start=timeline.start[tasks], end=timeline.end[tasks])
