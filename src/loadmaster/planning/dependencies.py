"""What each task of a solution must wait for: producers, copies, and the last users of the
addresses that it takes over."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.planning.address_reuse import reuse_pairs
from loadmaster.planning.decisions import Packed, Placement, Schedule, Timeline
from loadmaster.workloads.job import Job

After = tuple[tuple[int, ...], ...]


def waits(
    jobs: Sequence[Job], schedule: Schedule, placement: Placement, packed: Sequence[Packed]
) -> After:
    """For every task (jobs, then copies) the tasks that must have ended before it starts, beside
    those before it on its core.

    With these the decisions hold whatever the times turn out to be: bytes pass from one stay to the
    next only when all users of the first have ended. O(tasks + n log n) for n stays.
    """
    after = [set(job.after) for job in jobs] + [set(copy.after) for copy in placement.copies]
    for number, copy in enumerate(placement.copies):
        for job in copy.before:
            after[job].add(len(jobs) + number)
    # A copy runs on no core of a job.
    core = [*schedule.core.tolist(), *range(-1, -1 - len(placement.copies), -1)]
    for part in packed:
        for earlier, later in reuse_pairs(part.start, part.offsets, part.sizes):
            waiting, before = part.residences[later].writer, part.residences[earlier]
            here = core[waiting]
            # What the order on its own core puts before a task need not be waited for.
            after[waiting].update(
                [
                    task
                    for task in (before.writer, *before.users)
                    if task >= 0 and core[task] != here
                ]
            )
    return tuple([tuple(sorted(tasks)) for tasks in after])


def as_timed(after: After, timeline: Timeline) -> After:
    """Waits with which no task starts before it does in a timeline that keeps them: each waits for
    one that ends as it starts, too.

    Tasks that start as early as they may can get into each other's way on the links, and all end
    later than in the timeline.
    """
    ends = timeline.end.tolist()
    ending = {end: task for task, end in reversed(list(enumerate(ends)))}
    return tuple(
        tuple(sorted({*tasks, ending[start]}))
        if start in ending and all(ends[task] < start for task in tasks)
        else tasks
        for tasks, start in zip(after, timeline.start.tolist(), strict=True)
    )
