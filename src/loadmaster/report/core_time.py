"""Divides the time of a plan's cores by what they do or wait for.

The time of all cores, cores x makespan, is the sum over jobs of

    macs / peak rate                 arithmetic at the array's peak (or scalar steps / lanes)
    the core's start-up              before each job
    compute - both                   an array that is filled in part only
    (end - start) - compute          waiting for links

and of idle time, in which a core has no job. The waiting time of a job is divided among the links
that are saturated during the job, in proportion to the seconds in which they are; without any it
counts as start-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.planning.plan_records import LinkSegment, PlannedJob, PlanRecord
from loadmaster.targets.hardware import Core

_FULL = 0.99
"""Load from which a link counts as saturated; loads are inexact because times are whole
picoseconds."""


@dataclass(frozen=True)
class CoreTime:
    """Shares of the time of all cores, which add up to 1; ``links`` by the name of the memory."""

    at_peak: float
    """Share of arithmetic at the arrays' peak rate."""
    partly_filled: float
    """Share by which arithmetic takes longer, because arrays are partly filled."""
    links: Mapping[str, float]
    """Waiting for the link of each memory, by its name."""
    start_up: float
    """Share of the start-up of jobs."""
    idle: float
    """Share in which cores have no job."""

    def rows(self) -> list[tuple[str, float]]:
        """Return the shares with descriptions, largest first."""
        rows = [
            ("arithmetic at the arrays' peak", self.at_peak),
            ("arrays filled in part", self.partly_filled),
            *((f"waiting for the link of {name}", share) for name, share in self.links.items()),
            ("start-up of jobs", self.start_up),
            ("no job that is ready", self.idle),
        ]
        return sorted((row for row in rows if row[1] >= 5e-4), key=lambda row: -row[1])


def core_time(plan: PlanRecord) -> CoreTime:
    """Divide the time of all cores of a plan. O(n log n) for n jobs and link segments."""
    cores = {core.name: core for core in plan.target.cores}
    whole = plan.metrics.makespan.value * len(cores)
    if not whole:
        return CoreTime(0.0, 0.0, {}, 0.0, 1.0)
    start, end, compute, peak, start_up = np.array(
        [
            (
                job.start,
                job.end,
                job.compute,
                peak_seconds(job, core := cores.get(job.core)),
                core.start_up if core else 0.0,
            )
            for job in plan.jobs
        ]
    ).T
    start_up = np.minimum(start_up, compute - peak)
    waits = end - start - compute
    full = {name: _saturated_seconds(segments, start, end) for name, segments in plan.links.items()}
    together = sum(full.values(), np.zeros(len(start)))
    share = np.divide(waits, together, out=np.zeros_like(waits), where=together > 0)
    links = {name: float((share * seconds).sum() / whole) for name, seconds in full.items()}
    return CoreTime(
        float(peak.sum() / whole),
        float((compute - peak - start_up).sum() / whole),
        links,
        float((waits + start_up).sum() / whole) - sum(links.values()),
        1.0 - float((end - start).sum() / whole),
    )


def peak_seconds(job: PlannedJob, core: Core | None) -> float:
    """Return the seconds of a job's arithmetic at its core's peak rates, at most its planned
    seconds; 0 without a core."""
    if core is None:
        return 0.0
    rate = core.macs_per_cycle.get(job.bits) or max(core.macs_per_cycle.values(), default=1.0)
    cycles = max(
        job.macs / (core.rows * core.columns * rate), job.elements / core.lanes if core.lanes else 0
    )
    return min(job.compute, cycles / core.clock)


def _saturated_seconds(segments: tuple[LinkSegment, ...], start: Floats, end: Floats) -> Floats:
    """Return the seconds of each interval in which a link is saturated, shape (intervals,)."""
    full = [(s.start, s.end) for s in segments if s.load >= _FULL]
    if not full:
        return np.zeros(len(start))
    begins, ends = np.array(sorted(full)).T
    before = np.concatenate([[0.0], np.cumsum(ends - begins)])

    def until(time: Floats) -> Floats:
        """Return the seconds up to each time in which the link is saturated."""
        at = np.searchsorted(begins, time, side="right")
        beyond = np.where(at > 0, np.maximum(ends[at - 1] - time, 0.0), 0.0)
        return before[at] - beyond

    return until(end) - until(start)
