"""List scheduling by critical path, improved by a small seeded search over priorities."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import Floats, Int32s, Ints, Mask, edges_of
from loadmaster.core.deadline import NO_DEADLINE, Deadline
from loadmaster.core.progress import Progress, no_progress
from loadmaster.core.task_graph import task_graph
from loadmaster.cost.job_times import JobTimes
from loadmaster.mapping.local_search import Walk, late_acceptance
from loadmaster.mapping.priorities import perturbed, upward_rank
from loadmaster.planning.decisions import Schedule
from loadmaster.workloads.job import Job

_Start = tuple[Floats, Mask | None]

Judge = Callable[[Int32s, Ints, int], tuple[int, ...]]
"""Score of a schedule, small if it is good, by the core and the end of every job and the makespan
in picoseconds."""


class _Scored(NamedTuple):
    """A schedule and its score."""

    score: tuple[int, ...]
    core: Int32s
    order: Ints
    makespan: int


def map_jobs(
    jobs: Sequence[Job],
    times: JobTimes,
    *,
    samples: int,
    seed: int,
    deadline: Deadline = NO_DEADLINE,
    progress: Progress = no_progress,
    score_of: Judge | None = None,
    release: Ints | None = None,
    urgency: Floats | None = None,
    allowed: Sequence[Mask] = (),
) -> Schedule:
    """Find a schedule that respects dependencies.

    Starts from the upward rank of HEFT (Topcuoglu et al., 2002): the longest path from a job to the
    end, each job at its fastest core; and from ``urgency``, other priorities, if there are any.
    Then a (1+1) search multiplies the priorities of random jobs by random factors and keeps what is
    no worse, ``samples`` evaluations in all, each O(jobs x cores x (cores + log jobs)). Only
    ``deadline`` or Ctrl-C ends it earlier, and the best so far is returned.

    Good is what ``score_of`` says, or a short makespan. No job starts before its ``release`` in
    picoseconds. Each of ``allowed`` says where jobs may run, shape (jobs, cores), and is tried
    beside freedom.
    """
    after = [job.after for job in jobs]
    graph = task_graph(edges_of(after), len(jobs))
    earliest = np.zeros(len(jobs), dtype=np.int64) if release is None else release
    # Longer than all jobs one after another: nobody goes there.
    never = int(times.duration.max(axis=1).sum()) + 1

    def evaluate(start: _Start) -> _Scored:
        priority, mask = start
        duration = times.duration if mask is None else np.where(mask, times.duration, never)
        found = graph.dispatch(
            priority=priority, duration=duration, demand=times.demand, release=earliest
        )
        score = (
            (found.makespan,)
            if score_of is None
            else score_of(found.core, found.end, found.makespan)
        )
        return _Scored(score, found.core, found.order, found.makespan)

    rank = np.array(upward_rank(after, times.duration.min(axis=1).tolist()), dtype=np.float64)
    starts = [*itertools.product([rank] if urgency is None else [rank, urgency], [None, *allowed])][
        : max(1, samples)
    ]
    tried = [evaluate(start) for start in starts]
    number = min(range(len(tried)), key=lambda n: tried[n].score)
    generator = np.random.default_rng(seed)
    walk = Walk(starts[number], tried[number], len(starts))
    late_acceptance(
        walk,
        lambda start: (perturbed(start[0], generator), start[1]),
        evaluate,
        lambda found: found.score,
        memory=1,
        samples=samples,
        expired=deadline.passed,
        progress=lambda walk: progress("mapping", walk.evaluations / samples),
    )
    found = walk.found
    return Schedule(found.core, found.order, found.makespan, walk.evaluations, walk.interrupted)
