"""Values of stays in the fast memory, and eviction of the stays that find no address there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.base import JobTable
from loadmaster.planning.decisions import Placement, Residence, Schedule, Timeline
from loadmaster.workloads.job import TensorInstance


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
