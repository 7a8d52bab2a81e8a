"""List scheduling by critical path, improved by a small seeded search over priorities."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster import _native
from loadmaster.decisions import Schedule
from loadmaster.job import Job
from loadmaster.successors import successors
from loadmaster.timing import JobTimes

_Number = TypeVar("_Number", int, float)

Progress = Callable[[int, int, int], None]
"""Called with samples done, samples in all, and the best makespan in picoseconds."""


def map_jobs(
    jobs: Sequence[Job],
    times: JobTimes,
    *,
    samples: int,
    seed: int,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Schedule:
    """Find a schedule that respects dependencies.

    Starts from the upward rank of HEFT (Topcuoglu et al., 2002): the longest path from a job to the end, each job at its fastest core. Then
    a (1+1) search multiplies the priorities of random jobs by random factors and keeps what is no worse, ``samples`` evaluations
    in all, each O(jobs x cores x (cores + log jobs)). Only ``deadline`` (of :func:`time.monotonic`) or Ctrl-C ends it earlier,
    and the best so far is returned.
    """
    first, following = successors([(before, after) for after, job in enumerate(jobs) for before in job.after], len(jobs))

    at_once = np.zeros(len(jobs), dtype=np.int64)

    def evaluate(priority: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
        core, order, _, _, makespan = _native.dispatch(priority, times.duration, times.demand, first, following, at_once)
        return core, order, makespan

    best = np.array(upward_rank(jobs, times.duration.min(axis=1).tolist()), dtype=np.float64)
    core, order, makespan = evaluate(best)
    generator = np.random.default_rng(seed)
    done, interrupted = 1, False
    try:
        while done < samples:
            if deadline is not None and time.monotonic() > deadline:
                interrupted = True
                break
            candidate = perturbed(best, generator)
            result = evaluate(candidate)
            done += 1
            if result[2] <= makespan:
                best = candidate
                core, order, makespan = result
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
