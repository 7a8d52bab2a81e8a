"""List scheduling by critical path, improved by a small seeded search over priorities."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster import _native
from loadmaster.core.task_graph import successors
from loadmaster.cost.job_times import JobTimes
from loadmaster.planning.decisions import Schedule
from loadmaster.workloads.job import Job

_Number = TypeVar("_Number", int, float)

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
    first, following = successors([(before, after) for after, job in enumerate(jobs) for before in job.after], len(jobs))
    earliest = np.zeros(len(jobs), dtype=np.int64) if release is None else release
    # Longer than all jobs one after another: nobody goes there.
    never = int(times.duration.max(axis=1).sum()) + 1

    def evaluate(start: _Start) -> tuple[tuple[int, ...], NDArray[np.int32], NDArray[np.int64], int]:
        priority, mask = start
        duration = times.duration if mask is None else np.where(mask, times.duration, never)
        core, order, _, end, makespan = _native.dispatch(priority, duration, times.demand, first, following, earliest)
        return (makespan,) if judge is None else judge(core, end, makespan), core, order, makespan

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


def upward_rank(jobs: Sequence[Job], cost: Sequence[_Number]) -> list[_Number]:
    """Cost of the longest chain of jobs that each job begins, itself included; exact for integers."""
    rank = list(cost)
    above = [0 * c for c in cost]
    for index in range(len(jobs) - 1, -1, -1):
        # All successors have larger indices: their ranks have been passed up already.
        rank[index] += above[index]
        for before in jobs[index].after:
            above[before] = max(above[before], rank[index])
    return rank


def perturbed(priority: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """Change few priorities much or many a little."""
    share, strength = generator.choice([0.02, 0.1, 0.5]), generator.choice([0.03, 0.2, 1.0])
    chosen = generator.random(len(priority)) < share
    return np.asarray(priority * np.exp(strength * generator.standard_normal(len(priority)) * chosen))
