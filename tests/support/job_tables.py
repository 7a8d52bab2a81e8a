"""Costs of jobs on cores, from arrays alone."""

import numpy as np

from loadmaster.cost.base import JobAnalysis


def table_of(latency, bandwidth=0.0, **more):
    """Jobs are rows and cores columns; every job asks for the same bandwidth, or for its own, and
    does no arithmetic unless it is said."""
    latency = np.array(latency, dtype=float)
    jobs, cores = map(range, latency.shape)
    names = tuple(f"j{job}" for job in jobs), tuple(f"c{core}" for core in cores)
    counts = {"flops": np.zeros(len(latency), dtype=np.int64)}
    return JobAnalysis(*names, latency, np.zeros_like(latency) + bandwidth, **counts | more)
