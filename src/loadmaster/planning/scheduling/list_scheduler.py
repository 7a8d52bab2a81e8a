"""List scheduling by critical path, improved by a small seeded search over priorities."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.task_graph import task_graph
from loadmaster.cost.job_times import JobTimes
from loadmaster.mapping.priorities import perturbed, upward_rank
from loadmaster.planning.decisions import Schedule
from loadmaster.workloads.job import Job

Progress = Callable[[int, int, int], None]
"""Called with samples done, samples in all, and the best makespan in picoseconds."""

_Start = tuple[NDArray[np.float64], NDArray[np.bool_] | None]

Judge = Callable[[NDArray[np.int32], NDArray[np.int64], int], tuple[int, ...]]
"""Score of a schedule, small if it is good, by the core and the end of every job and the makespan in picoseconds."""


def map_jobs(
    jobs: Sequence[Job],
    times: JobTimes,
    *,
    samples: int,
    seed: int,
    deadline: float | None = None,
    progress: Progress | None = None,
    judge: Judge | None = None,
    release: NDArray[np.int64] | None = None,
    urgency: NDArray[np.float64] | None = None,
    allowed: Sequence[NDArray[np.bool_]] = (),
) -> Schedule:
    """Find a schedule that respects dependencies.

    Starts from the upward rank of HEFT (Topcuoglu et al., 2002): the longest path from a job to the end, each job at its fastest core; and
    from ``urgency``, other priorities, if there are any. Then
    a (1+1) search multiplies the priorities of random jobs by random factors and keeps what is no worse, ``samples`` evaluations
    in all, each O(jobs x cores x (cores + log jobs)). Only ``deadline`` (of :func:`time.monotonic`) or Ctrl-C ends it earlier,
    and the best so far is returned.

    Good is what ``judge`` says, or a short makespan. No job starts before its ``release`` in picoseconds. Each of ``allowed`` says where
    jobs may run, shape (jobs, cores), and is tried beside freedom.
    """
    graph = task_graph([(before, after) for after, job in enumerate(jobs) for before in job.after], len(jobs))
    earliest = np.zeros(len(jobs), dtype=np.int64) if release is None else release
    # Longer than all jobs one after another: nobody goes there.
    never = int(times.duration.max(axis=1).sum()) + 1

    def evaluate(start: _Start) -> tuple[tuple[int, ...], NDArray[np.int32], NDArray[np.int64], int]:
        priority, mask = start
        duration = times.duration if mask is None else np.where(mask, times.duration, never)
        found = graph.dispatch(priority=priority, duration=duration, demand=times.demand, release=earliest)
        score = (found.makespan,) if judge is None else judge(found.core, found.end, found.makespan)
        return score, found.core, found.order, found.makespan

    rank = np.array(upward_rank(jobs, times.duration.min(axis=1).tolist()), dtype=np.float64)
    starts = [*itertools.product([rank] if urgency is None else [rank, urgency], [None, *allowed])][: max(1, samples)]
    tried = [evaluate(start) for start in starts]
    number = min(range(len(tried)), key=lambda n: tried[n][0])
    best, (score, core, order, makespan) = starts[number], tried[number]
    generator = np.random.default_rng(seed)
    done, interrupted = len(starts), False
    try:
        while done < samples:
            if deadline is not None and time.monotonic() > deadline:
                interrupted = True
                break
            candidate = perturbed(best[0], generator), best[1]
            result = evaluate(candidate)
            done += 1
            if result[0] <= score:
                best = candidate
                score, core, order, makespan = result
            if progress is not None:
                progress(done, samples, makespan)
    except KeyboardInterrupt:
        interrupted = True
    return Schedule(core, order, makespan, done, interrupted)
