"""What a plan of jobs takes, whoever decided it: its times, its energy and its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loadmaster.core.arrays import Int32s, Ints
from loadmaster.cost.energy_model import EnergyModel
from loadmaster.cost.job_table import JobTable
from loadmaster.cost.job_times import JobTimes, job_times, memories_used
from loadmaster.planning.decisions import Placement, Schedule, Score, Solution, Timeline
from loadmaster.planning.goal import Goal, delivered, overflowing
from loadmaster.planning.packing import most_alive
from loadmaster.planning.replay import replay
from loadmaster.planning.stays import Stays
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Workload


@dataclass(frozen=True, eq=False)
class Assessor:
    """Times and judges decisions about the jobs of one workload."""

    workload: Workload
    table: JobTable
    target: Target
    goal: Goal
    energy: EnergyModel

    @cached_property
    def _input_release(self) -> Ints:
        return self.goal.released_tensors(self.workload)

    @cached_property
    def _padded(self) -> Ints:
        return np.array(
            [self.target.main.padded(tensor.bytes) for tensor in self.workload.tensors],
            dtype=np.int64,
        )

    def wishes(self, placement: Placement) -> dict[str, Any]:
        """What the mapper is told of the goal: how to judge, what is urgent, and which cores are
        frugal."""
        if self.goal.objective == "throughput" and not self.goal.is_timed:
            return {}
        energy = self.energy.of_jobs(
            *memories_used(
                self.table, placement.read_fast, placement.write_fast, placement.write_main
            )
        )
        each = np.arange(len(energy))

        def judge(core: Int32s, end: Ints, makespan: int) -> Score:
            def joules() -> int:
                return round(float(energy[each, core].sum())) + self.energy.rates.static(makespan)

            return self.goal.score(end, makespan, joules)

        least = energy.min(axis=1, keepdims=True)
        frugal = (
            [energy <= (1 + more) * least for more in (0.0, 0.1)] if self.goal.needs_energy else []
        )
        wishes: dict[str, Any] = {
            "judge": judge,
            "release": self.goal.job_release,
            "allowed": frugal,
        }
        if self.goal.is_timed or self.goal.latency_network:
            wishes["urgency"] = self.goal.urgency
        return wishes

    def times(self, placement: Placement) -> JobTimes:
        """How long every job takes on every core, and what it asks of the links."""
        return job_times(
            self.table,
            self.target,
            placement.read_fast,
            placement.write_fast,
            placement.write_main,
            placement.streamed,
        )

    def replay(
        self, schedule: Schedule, placement: Placement, after: Sequence[Sequence[int]] = ()
    ) -> Timeline:
        """Run what was decided, as early as can be; ``after`` has for every task those that it
        waits for beside its sources."""
        release = np.concatenate(
            [
                self.goal.job_release,
                self._input_release[
                    np.array([copy.tensor for copy in placement.copies], dtype=np.int64)
                ],
            ]
        )
        return replay(
            self.workload, self.times(placement), self.target, schedule, placement, after, release
        )

    def score(self, schedule: Schedule, placement: Placement, timeline: Timeline) -> Score:
        """What decisions and the timeline that came of them are compared by: first, bytes of main
        memory that are wanting."""
        ends = delivered(self.workload, placement.copies, timeline.end)
        score = self.goal.score(
            ends, timeline.makespan, lambda: self.energy_of(schedule, placement, timeline)
        )
        # Behind the highest buffer nothing needs to be aligned.
        capacity = self.target.main.padded(self.target.main.capacity)
        if int(self._padded.sum()) <= capacity:
            return score
        stays = Stays.of(self.workload, placement, timeline, 0)
        sizes = self._padded[[r.tensor for r in stays.residences]]
        return overflowing(score, most_alive(stays.start, stays.end, sizes) - capacity)

    def energy_of(self, schedule: Schedule, placement: Placement, timeline: Timeline) -> int:
        """Femtojoules of a plan."""
        used = memories_used(
            self.table,
            placement.read_fast,
            placement.write_fast,
            placement.write_main,
            placement.streamed,
        )
        copied = sum(self.workload.tensors[copy.tensor].bytes for copy in placement.copies)
        return self.energy.of_plan(schedule.core, *used, copied, timeline.makespan)

    def score_of(self, solution: Solution) -> Score:
        """What a complete plan is compared by."""
        return self.score(solution.schedule, solution.placement, solution.timeline)
