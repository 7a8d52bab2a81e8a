"""The separate pipeline: list scheduling, then placement, then packing, each with what the ones
before have decided."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import Floats, Int32s, Ints, Mask, edges_of
from loadmaster.core.effort import Effort
from loadmaster.core.progress import NO_DEADLINE, Deadline, Interrupts, Progress, no_progress
from loadmaster.core.task_graph import task_graph
from loadmaster.cost.base import JobTimes
from loadmaster.mapping.local_search import Walk, late_acceptance, perturbed, upward_rank
from loadmaster.planning.addresses import Addresses, Draft
from loadmaster.planning.assessor import Assessor
from loadmaster.planning.decisions import Placement, Schedule, Score
from loadmaster.planning.residency import (
    keep_resident,
    resident,
    saved_seconds,
    stage_copies,
)
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


_SCHEDULES_A_PACKING = 16
"""List schedules for each time that something is packed."""
_MARGINS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5)
"""Fractions of the fast memory that copies fill on a machine that must copy operands, tried in this
order until one can be packed."""


@dataclass(frozen=True, eq=False)
class SeparatePipeline:
    """Drafts of plans of one workload, none of them joint."""

    assess: Assessor
    addresses: Addresses
    seed: int
    effort: Effort
    deadline: Deadline
    report: Progress
    interrupts: Interrupts
    is_late: Callable[[], bool]

    def without_fast_memory(self) -> Draft:
        """A draft of a plan in which everything stays in main memory."""
        draft = self._draft(self._map(self._nowhere()), self._nowhere(), None)
        assert draft is not None
        return draft

    def with_residents(self, begun: Draft) -> Draft | None:
        """A draft with the same schedule that keeps what saves the most in the fast memory; None if
        it is worse."""
        if self.assess.target.fast is None:
            return None
        in_fast = keep_resident(
            self.assess.workload,
            self.assess.table,
            self.assess.target,
            begun.schedule,
            begun.timeline,
        )
        return self._draft(begun.schedule, in_fast, begun.score)

    def staged_and_packed(self) -> Iterator[Draft]:
        """Fill less and less of the fast memory, and then wait for copies back, until all has
        addresses."""
        for wait, margin in itertools.product((False, True), _MARGINS):
            found = self.staged(margin, wait)
            # Without a packing there may be no plan: this takes the time that it takes.
            packed = self.addresses.pack(1, found.placement, found.timeline, None, math.inf)
            if min(packed.offsets, default=0) >= 0:
                yield replace(found, packed=packed)

    def staged(self, margin: float = 1.0, wait: bool = False) -> Draft:
        """Bring every operand to the fast memory, for jobs that run in turn on one core: of
        several, the one that is soonest done."""
        assert self.assess.target.fast is not None
        schedule = self._in_turn
        placement = stage_copies(
            self.assess.workload,
            self.assess.table,
            schedule.order.tolist(),
            self.assess.target.fast,
            margin=margin,
            wait_for_copies_back=wait,
        )
        timeline = self.assess.replay(schedule, placement)
        return Draft(
            schedule, placement, timeline, None, self.assess.score(schedule, placement, timeline)
        )

    @cached_property
    def _in_turn(self) -> Schedule:
        everywhere = np.ones(len(self.assess.workload.tensors), dtype=np.bool_)
        if len(self.assess.target.cores) == 1:
            return self._map(everywhere)
        order = np.arange(len(self.assess.workload.jobs), dtype=np.int64)
        duration = self.assess.times(self._resident(everywhere)).duration.sum(axis=0)
        fastest = int(duration.argmin())
        return Schedule(
            np.full(len(order), fastest, dtype=np.int32), order, int(duration[fastest]), 1
        )

    def _resident(self, in_fast: Mask) -> Placement:
        return resident(self.assess.workload, self.assess.table, in_fast)

    def _nowhere(self) -> Mask:
        return np.zeros(len(self.assess.workload.tensors), dtype=np.bool_)

    def _draft(self, schedule: Schedule, in_fast: Mask, limit: Score | None) -> Draft | None:
        """Send to main memory what finds no address in the fast one, until all the rest does; None
        once it is worse than ``limit``."""
        value = saved_seconds(
            self.assess.workload.tensors, self.assess.table, self.assess.target, schedule
        )
        while True:
            placement = self._resident(in_fast)
            timeline = self.assess.replay(schedule, placement)
            score = self.assess.score(schedule, placement, timeline)
            if limit is not None and score > limit:
                return None
            if not in_fast.any() or self.assess.target.fast is None:
                return Draft(schedule, placement, timeline, None, score)
            if limit is not None and self.is_late():
                return None
            packed = self.addresses.pack(
                1,
                placement,
                timeline,
                value[[r.tensor for r in placement.residences if r.memory == 1]],
            )
            unplaced = [
                r.tensor
                for r, offset in zip(packed.residences, packed.offsets, strict=True)
                if offset < 0
            ]
            if not unplaced:
                return Draft(schedule, placement, timeline, packed, score)
            in_fast = in_fast.copy()
            in_fast[unplaced] = False

    def _map(self, in_fast: Mask) -> Schedule:
        placement = self._resident(in_fast)

        def progress(_: str, share: float) -> None:
            self.report("mapping", share)
            if self.interrupts.requested:
                raise KeyboardInterrupt

        return map_jobs(
            self.assess.workload.jobs,
            self.assess.times(placement),
            samples=1 if self.is_late() else _SCHEDULES_A_PACKING * self.effort.packings,
            seed=self.seed,
            deadline=self.deadline,
            progress=progress,
            **self.assess.search_options(placement),
        )
