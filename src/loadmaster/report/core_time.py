"""What a plan waits for: where its cores' time goes.

The time of all cores, cores x makespan, is the sum over jobs of

    macs / peak rate                 arithmetic at the array's peak (or scalar steps / lanes)
    compute - macs / peak rate       an array that is filled in part only
    (end - start) - compute          waiting for links, or start-up

and of what is left: cores without a job. A job that takes longer than its arithmetic waits for the
links that are full meanwhile, each for its share of that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.planning.plan_records import LinkSegment, PlannedJob, PlanRecord
from loadmaster.targets.hardware import Core

_FULL = 0.99
"""Load from which a link is full: times are whole picoseconds, so that loads are rounded."""


@dataclass(frozen=True)
class CoreTime:
    """Shares of the time of all cores, which add up to 1; ``links`` by the name of the memory."""

    at_peak: float
    """Share of arithmetic, as long as it takes at the arrays' peak."""
    partly_filled: float
    """Share by which arithmetic takes longer, because arrays are filled in part."""
    links: Mapping[str, float]
    """Waiting for the link of each memory, by its name."""
    start_up: float
    """Share that jobs take before and beside all that."""
    idle: float
    """Share in which no job is ready."""

    def rows(self) -> list[tuple[str, float]]:
        """What cores do, in words, the most time first."""
        rows = [
            ("arithmetic at the arrays' peak", self.at_peak),
            ("arrays filled in part", self.partly_filled),
            *((f"waiting for the link of {name}", share) for name, share in self.links.items()),
            ("start-up of jobs", self.start_up),
            ("no job that is ready", self.idle),
        ]
        return sorted((row for row in rows if row[1] >= 5e-4), key=lambda row: -row[1])


def core_time(plan: PlanRecord) -> CoreTime:
    """Divide the time of all cores. O(jobs + link segments), sorted."""
    cores = {core.name: core for core in plan.target.cores}
    whole = plan.metrics.makespan.value * len(cores)
    if not whole:
        return CoreTime(0.0, 0.0, {}, 0.0, 1.0)
    start, end, compute, peak = np.array(
        [
            (job.start, job.end, job.compute, peak_seconds(job, cores.get(job.core)))
            for job in plan.jobs
        ]
    ).T
    waits = end - start - compute
    full = {name: _full_within(segments, start, end) for name, segments in plan.links.items()}
    together = sum(full.values(), np.zeros(len(start)))
    share = np.divide(waits, together, out=np.zeros_like(waits), where=together > 0)
    links = {name: float((share * seconds).sum() / whole) for name, seconds in full.items()}
    busy = float((end - start).sum() / whole)
    return CoreTime(
        float(peak.sum() / whole),
        float((compute - peak).sum() / whole),
        links,
        float(waits.sum() / whole) - sum(links.values()),
        1.0 - busy,
    )


def peak_seconds(job: PlannedJob, core: Core | None) -> float:
    """Seconds of a job's arithmetic at the peak rates of its core, or all of it if that is less;
    none if the target has no such core."""
    if core is None:
        return 0.0
    rate = core.macs_per_cycle.get(job.bits) or max(core.macs_per_cycle.values(), default=1.0)
    cycles = max(
        job.macs / (core.rows * core.columns * rate), job.elements / core.lanes if core.lanes else 0
    )
    return min(job.compute, cycles / core.clock)


def _full_within(segments: tuple[LinkSegment, ...], start: Floats, end: Floats) -> Floats:
    """Seconds of each interval in which a link is full."""
    full = [(s.start, s.end) for s in segments if s.load >= _FULL]
    if not full:
        return np.zeros(len(start))
    begins, ends = np.array(sorted(full)).T
    before = np.concatenate([[0.0], np.cumsum(ends - begins)])

    def until(time: Floats) -> Floats:
        at = np.searchsorted(begins, time, side="right")
        beyond = np.where(at > 0, np.maximum(ends[at - 1] - time, 0.0), 0.0)
        return np.asarray(before[at] - beyond)

    return until(end) - until(start)
