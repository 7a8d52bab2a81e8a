"""Jobs that wait for others, or for their time: list scheduling with a search over priorities, on the planner's event engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster import _native
from loadmaster.errors import MappingError
from loadmaster.mapping.group import Cores, Floats, Group, Ints
from loadmaster.mapping.search import perturbed
from loadmaster.successors import successors
from loadmaster.units import PICOSECONDS

_LONGEST = 2**52
_SECONDS = 1.0 / PICOSECONDS


@dataclass(frozen=True, eq=False)
class Order:
    """What holds jobs back, and when they are late.

    Attributes
    ----------
    after
        For every job, indices of the jobs that it waits for, all smaller than its own.
    release
        Seconds before which a job may not start.
    due
        Seconds by which it should have ended; infinite where nobody cares.
    weight
        How much a second of lateness counts.
    """

    after: Sequence[Sequence[int]]
    release: Floats
    due: Floats
    weight: Floats


@dataclass(frozen=True, eq=False)
class OrderedSchedule:
    """Core, start and end (seconds) of every job; ``value`` is weighted lateness, then makespan, both in seconds."""

    core: Cores
    start: Floats
    end: Floats
    value: tuple[float, float]
    samples: int
    history: tuple[tuple[int, float], ...]
    interrupted: bool


def schedule(
    group: Group,
    order: Order,
    *,
    samples: int | None,
    seed: int,
    deadline: float | None = None,
    progress: Callable[[float], None] | None = None,
) -> OrderedSchedule:
    """Make late jobs as little late as possible, weighted, and then the makespan small.

    Starts from the longest path to the end and from the earliest due date, and then a (1+1) search changes priorities at random. Whenever a
    core is idle, it takes the ready job of highest priority that would finish first there. Times are whole picoseconds.

    Raises
    ------
    MappingError
        If the work takes longer than what picoseconds can count in double precision.
    """
    duration = _durations(group)
    edges = [(before, job) for job, befores in enumerate(order.after) for before in befores]
    first, following = successors(edges, group.jobs)
    release = np.ceil(order.release * PICOSECONDS).astype(np.int64)
    demand = np.ascontiguousarray(group.demand[:, :, None])

    def evaluate(priority: Floats) -> tuple[tuple[float, float], Cores, Ints, Ints]:
        core, _, start, end, makespan = _native.dispatch(priority, duration, demand, first, following, release)
        late = np.maximum(0.0, end * _SECONDS - order.due)
        return (float((late * order.weight).sum()), makespan * _SECONDS), core, start, end

    rank = longest_tails(order.after, duration.min(axis=1).astype(np.float64))
    urgency = [rank]
    if np.isfinite(order.due).any():
        urgency.append(1.0 / np.maximum(order.due, _SECONDS))
    best, priority = min(((evaluate(start), start) for start in urgency), key=lambda pair: pair[0][0])
    taken, interrupted = len(urgency), False
    history = [(taken, best[0][1])]
    generator = np.random.default_rng(seed)
    began = time.perf_counter()
    try:
        while samples is None or taken < samples:
            if deadline is not None and time.perf_counter() >= deadline:
                interrupted = True
                break
            candidate = perturbed(priority, generator)
            result = evaluate(candidate)
            taken += 1
            if result[0] <= best[0]:
                if result[0] < best[0]:
                    history.append((taken, result[0][1]))
                best, priority = result, candidate
            if progress is not None:
                share = 0.0 if samples is None else taken / samples
                progress(share if deadline is None else max(share, (time.perf_counter() - began) / max(1e-9, deadline - began)))
    except KeyboardInterrupt:
        interrupted = True
    value, core, start, end = best
    begin, finish = (np.asarray(times * _SECONDS, dtype=np.float64) for times in (start, end))
    return OrderedSchedule(core, begin, finish, value, taken, tuple(history), interrupted)


def longest_path(group: Group, order: Order) -> float:
    """Seconds before which no schedule ends: the longest chain of jobs, each alone at its fastest, from its release on."""
    alone = np.where(group.allowed, group.latency, np.inf) * np.maximum(1.0, group.demand)
    least = alone.min(axis=1)
    end = np.empty(group.jobs)
    for job in range(group.jobs):
        end[job] = max([order.release[job], *(end[before] for before in order.after[job])]) + least[job]
    return float(end.max()) * (1.0 - (group.jobs + 10) * 2.0**-52)


def longest_tails(after: Sequence[Sequence[int]], cost: Floats) -> Floats:
    """Cost of the longest chain of jobs that each job begins, itself included (HEFT's upward rank)."""
    rank = cost.copy()
    for job in range(len(rank) - 1, -1, -1):
        for before in after[job]:
            rank[before] = max(rank[before], cost[before] + rank[job])
    return rank


def _durations(group: Group) -> Ints:
    """Whole picoseconds, rounded up; where a core cannot run a job, longer than all work together, so that nobody goes there."""
    seconds = np.where(group.allowed, group.latency, 0.0)
    longest = float((seconds * np.maximum(1.0, group.demand)).max(axis=1).sum()) * PICOSECONDS * group.cores
    if not longest < _LONGEST / 4:
        raise MappingError(
            "with dependencies or deadlines, the work of all jobs one after another may take at most 18 minutes: map fewer jobs at once"
        )
    whole = np.ceil(seconds * PICOSECONDS - 1e-6).astype(np.int64)
    return np.where(group.allowed, np.maximum(1, whole), int(longest) + group.jobs + 1)
