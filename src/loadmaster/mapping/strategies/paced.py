"""Paced orders keep the total demand for bandwidth level: a core that becomes free takes the job
whose demand best complements the running jobs.

On the virtual clock every job takes its latency alone, and a mapping takes the integral of max(1,
S), where S is the sum of the demands of running jobs. The integral of S is the same for all orders
of the jobs of each core, so the best order leaves the least bandwidth idle (S < 1): S should be
level.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from loadmaster.mapping.group import Group, Queues

_MOST = 1.1
"""Largest target of S: beyond it no bandwidth is idle, and jobs of high demand are better kept for
the end, when few cores are busy."""


def paced(group: Group, core: NDArray[np.integer]) -> Queues:
    """Return one row of queues: job ``j`` on ``core[j]``, in a paced order.

    A core takes the job that brings S closest to the remaining demand over the remaining virtual
    time, at most :data:`_MOST`. O(jobs log jobs), and a queue's length to remove a job.
    """
    jobs = np.arange(group.jobs)
    latency, demand = group.latency[jobs, core], group.demand[jobs, core]
    lengths = latency.tolist()
    left = [_Queue(demand, np.flatnonzero(core == c)) for c in range(group.cores)]
    span = float(np.bincount(core, latency, minlength=group.cores).max())
    work = float((latency * demand).sum())
    asking = [0.0] * group.cores
    order: list[list[int]] = [[] for _ in range(group.cores)]
    free = [(0.0, c) for c in range(group.cores)]
    now = total = 0.0
    while free:
        start, c = heapq.heappop(free)
        work -= (start - now) * total
        now, total, asking[c] = start, total - asking[c], 0.0
        if not left[c].jobs:
            order[c].append(group.jobs)
            continue
        level = min(_MOST, max(0.0, work) / (span - now)) if span > now else _MOST
        job, asking[c] = left[c].take(level - total)
        total += asking[c]
        order[c].append(job)
        heapq.heappush(free, (start + lengths[job], c))
    return np.array([list(chain(*order))], dtype=np.int32)


class _Queue:
    """Waiting jobs of a core, sorted by demand."""

    def __init__(self, demand: NDArray[np.float64], jobs: NDArray[np.integer]) -> None:
        order = jobs[np.argsort(demand[jobs], kind="stable")]
        self.jobs: list[int] = order.tolist()
        self._demand: list[float] = demand[order].tolist()

    def take(self, wanted: float) -> tuple[int, float]:
        """Remove the job whose demand is closest to ``wanted``; return job and demand."""
        at = bisect_left(self._demand, wanted)
        if at == len(self.jobs) or (
            at and wanted - self._demand[at - 1] <= self._demand[at] - wanted
        ):
            at -= 1
        return self.jobs.pop(at), self._demand.pop(at)
