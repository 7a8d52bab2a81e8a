"""Periods and deadlines of networks: release and due times of jobs, and results of mini-batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.job_pool import JobPool
from loadmaster.mapping.answer import JobMapping
from loadmaster.workloads.job import MiniBatch, NetworkTiming


def job_times_of(
    pool: JobPool, timings: Mapping[str, NetworkTiming], priorities: Mapping[str, float]
) -> tuple[Floats, Floats, Floats]:
    """Release, due time (seconds) and weight of every job; only jobs without successors have due
    times.

    ``timings`` has every network of the pool; ``priorities`` are weights of a second of a network's
    lateness, 1 by default.
    """
    mine = [timings[network] for network in pool.network]
    release = np.array(
        [timing.period * number for timing, number in zip(mine, pool.mini_batch, strict=True)]
    )
    due = release + np.array(
        [np.inf if timing.deadline is None else timing.deadline for timing in mine]
    )
    due[sorted({before for befores in pool.after for before in befores})] = np.inf
    return release, due, np.array([priorities.get(network, 1.0) for network in pool.network])


def mini_batches_of(
    pool: JobPool, timings: Mapping[str, NetworkTiming], mapping: JobMapping
) -> tuple[MiniBatch, ...]:
    """Release, end and latency of every mini-batch of every network, and whether it misses its
    deadline."""
    ends: dict[tuple[str, int], float] = {}
    for network, number, end in zip(
        pool.network, pool.mini_batch, mapping.end.tolist(), strict=True
    ):
        ends[network, number] = max(end, ends.get((network, number), 0.0))
    batches = []
    for (network, number), end in ends.items():
        timing = timings[network]
        release = timing.period * number
        # Ends and due times are whole picoseconds.
        missed = timing.deadline is not None and end - release - timing.deadline > 0.5 / PICOSECONDS
        batches.append(MiniBatch(network, number, release, end, end - release, missed))
    return tuple(batches)
