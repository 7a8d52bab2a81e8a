"""The problem of planning the jobs of one workload: simulates and scores decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from loadmaster.core.arrays import Floats, Ints, column_of, edges_of
from loadmaster.core.errors import PlanError
from loadmaster.core.task_graph import task_graph
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.analytical.energy import EnergyModel, energy_rates
from loadmaster.cost.analytical.job_costs import tiled_table
from loadmaster.cost.base import JobTable, JobTimes, job_times, whole_picoseconds
from loadmaster.planning.decisions import (
    Placement,
    Schedule,
    Score,
    Solution,
    Stays,
    Timeline,
    most_alive,
)
from loadmaster.planning.goal import Goal, delivered
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import TensorInstance, Workload


def replay(
    workload: Workload,
    times: JobTimes,
    target: Target,
    schedule: Schedule,
    placement: Placement,
    after: Sequence[Sequence[int]] = (),
    release: Ints | None = None,
) -> Timeline:
    """Simulate a schedule and a placement.

    A task starts when its resource is free, the tasks before it on that resource have started, the
    tasks in ``after`` (by task) have ended, and its ``release`` (picoseconds, by task) has passed.
    Tasks that run together share each link as :mod:`loadmaster.mapping` describes. Copies run one
    at a time, in the given order. O(tasks x cores x links) time.
    """
    jobs = len(workload.jobs)
    chosen = np.arange(jobs), schedule.core
    links = len(target.memories)
    duration = times.duration[chosen]
    demand = np.concatenate([times.demand[chosen], times.rate[chosen]], axis=1)
    resource = schedule.core
    order = schedule.order
    edges = [workload.edges, edges_of(after)]
    if placement.copies:
        copy_duration, copy_demand = _copy_times(workload.tensors, target, placement)
        copy_index = jobs + np.arange(len(placement.copies))
        duration = np.append(duration, copy_duration)
        demand = np.concatenate([demand, copy_demand])
        resource = np.append(resource, np.full(len(copy_index), len(target.cores), dtype=np.int32))
        order = np.append(order, copy_index)
        nothing: list[tuple[int, ...]] = [()] * jobs
        edges.append(edges_of([*nothing, *(copy.after for copy in placement.copies)]))
        edges.append(edges_of([*nothing, *(copy.before for copy in placement.copies)])[:, ::-1])
    tasks = len(duration)
    if release is not None and release.any():
        # A clock resource: one task up to every release time, in sequence.
        ticks = np.unique(release[release > 0])
        held = np.flatnonzero(release)
        edges.append(np.stack([tasks + np.searchsorted(ticks, release[held]), held], axis=1))
        duration = np.append(duration, np.diff(ticks, prepend=0))
        demand = np.concatenate([demand, np.zeros((len(ticks), demand.shape[1]))])
        resource = np.append(resource, np.full(len(ticks), len(target.cores) + 1, dtype=np.int32))
        order = np.append(order, tasks + np.arange(len(ticks)))
    found = task_graph(np.concatenate(edges), len(duration)).replay(
        duration=duration,
        demand=np.ascontiguousarray(demand),
        links=links,
        resource=resource,
        resources=len(target.cores) + 2,
        order=order,
    )
    if found.completed < len(duration):
        stuck = int(np.flatnonzero(found.end < 0)[0])
        raise PlanError(
            f"the order of jobs contradicts their dependencies: task {stuck} can never start"
        )
    return Timeline(
        found.start[:tasks],
        found.end[:tasks],
        found.time,
        found.used[:, :links],
        found.used[:, links:],
    )


def _copy_times(
    tensors: Sequence[TensorInstance], target: Target, placement: Placement
) -> tuple[Ints, Floats]:
    """Duration in picoseconds, link demands and rates of every copy, at the bandwidth of the copy
    engine for copies that overlap jobs."""
    # As `number_copies` in src/native/joint/admission.cpp; tests/test_twins.py holds the two
    # together.
    assert target.copy is not None
    rows = []
    for copy in placement.copies:
        size = tensors[copy.tensor].bytes
        links = [0.0] * len(target.memories)
        links[copy.source] = size / target.memories[copy.source].read_bandwidth
        links[copy.memory] = size / target.memories[copy.memory].write_bandwidth
        engine = size / target.copy.overlapping[copy.memory]
        moved = [size * (number in (copy.source, copy.memory)) for number in range(len(links))]
        rows.append((max(engine, *links), *links, *moved))
    table = np.array(rows)
    duration = whole_picoseconds(table[:, :1])[:, 0]
    return duration, table[:, 1:] / (duration[:, None] / PICOSECONDS)


@dataclass(frozen=True, eq=False)
class PlanProblem:
    """The jobs of one workload, their costs on a machine, and the goal.

    ``tilings`` has the tiling of every job, an index into
    :data:`~loadmaster.cost.analytical.nests.EXPECTED`.
    """

    workload: Workload
    table: JobTable
    target: Target
    goal: Goal
    energy: EnergyModel
    tilings: Ints

    def tiled(self, table: JobTable, tilings: Ints) -> PlanProblem:
        """The same problem with other tilings, and the costs with these."""
        energy = EnergyModel(table, self.energy.rates)
        return replace(self, table=table, energy=energy, tilings=tilings)

    def on(self, target: Target) -> PlanProblem:
        """The problem of the same jobs, with the same tilings, on another machine."""
        table = tiled_table(self.workload, target, self.tilings)
        energy = EnergyModel(table, energy_rates(target))
        return replace(self, table=table, target=target, energy=energy)

    @cached_property
    def padded(self) -> Ints:
        """Bytes of each tensor in main memory, rounded up to pages."""
        return np.array(
            [self.target.main.padded(tensor.bytes) for tensor in self.workload.tensors],
            dtype=np.int64,
        )

    def times(self, placement: Placement) -> JobTimes:
        """Duration of every job on every core, and its demand on the links."""
        return job_times(self.table, self.target, placement.used)

    def replay(
        self, schedule: Schedule, placement: Placement, after: Sequence[Sequence[int]] = ()
    ) -> Timeline:
        """Simulate with every task as early as possible; ``after`` lists, by task, the tasks it
        waits for besides the producers of its operands."""
        copied = column_of(placement.copies, "tensor", np.int64)
        there = self.goal.released_tensors(self.workload)[copied]
        release = np.concatenate([self.goal.job_release, there])
        return replay(
            self.workload, self.times(placement), self.target, schedule, placement, after, release
        )

    def score_of(self, solution: Solution) -> Score:
        """Score of a complete plan."""
        placement, timeline = solution.placement, solution.timeline
        ends = delivered(self.workload, placement.copies, timeline.end)
        # Behind the highest buffer nothing needs to be aligned.
        room = self.target.main.padded(self.target.main.capacity)
        lacking = 0
        if int(self.padded.sum()) > room:
            stays = Stays.of(self.workload, placement, timeline, 0)
            sizes = self.padded[[r.tensor for r in stays.residences]]
            lacking = max(0, most_alive(stays.start, stays.end, sizes) - room)

        def energy() -> int:
            """Return the energy of the plan in whole femtojoules."""
            copied = sum(self.workload.tensors[copy.tensor].bytes for copy in placement.copies)
            core = solution.schedule.core
            return self.energy.of_plan(core, placement.used, copied, timeline.makespan)

        return self.goal.score(ends, timeline.makespan, energy, lacking)
