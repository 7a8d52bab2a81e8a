"""Tilings of jobs chosen for where a plan leaves their operands: more cycles for fewer bytes where
a link limits it, or fewer cycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.analytical.tiling_front import front_tables, mixed_table
from loadmaster.cost.energy_model import EnergyModel
from loadmaster.cost.job_table import JobTable
from loadmaster.cost.job_times import job_times, memories_used
from loadmaster.planning.decisions import Solution
from loadmaster.planning.workload_planner import WorkloadPlanner

_PRICES = (0.0, 0.25, 1.0, 4.0)
"""What a second of the links counts beside one of a job, when its tiling is chosen."""
_MOST_JOBS = 20_000
"""Jobs of which each is tiled by itself: of more, the tables alone take long."""


def retiled(planner: WorkloadPlanner, solution: Solution) -> tuple[WorkloadPlanner, Solution]:
    """A plan no worse, whose jobs have the tilings that suit it, and its planner.

    For each of a few prices of a second of the links every job gets the tiling that is cheapest
    where its operands are; so it does for energy. The plan is timed with each of these tables, and
    the joint search goes on from the best for a round. That is done again as long as it helps, at
    most as often as a search packs. O(operands x cores x tilings) besides.
    """
    if (
        len(planner.workload.jobs) > _MOST_JOBS
        or not planner.target.main.in_place
        or planner.is_late()
    ):
        return planner, solution
    tables = front_tables(planner.workload, planner.target)
    for _ in range(planner.effort.packings):
        if planner.is_late():
            break
        found = min(
            _timed(planner, solution, tables),
            key=lambda each: each[0].score_of(each[1]),
            default=None,
        )
        if found is None:
            break
        heir, timed = found
        better = heir.resumed(timed)
        planner.interrupted |= heir.interrupted
        if heir.score_of(better) >= planner.score_of(solution):
            break
        planner, solution = heir, better
    return planner, solution


def _timed(
    planner: WorkloadPlanner, solution: Solution, tables: Sequence[JobTable]
) -> Iterator[tuple[WorkloadPlanner, Solution]]:
    """The plan with other tilings, timed, and what plans on with these."""
    seen = [planner.tilings]
    for chosen in _choices(planner, solution, tables):
        if not any(np.array_equal(chosen, other) for other in seen):
            seen.append(chosen)
            heir = planner.tiled(mixed_table(tables, chosen), chosen)
            yield heir, replace(heir.timed(solution), search=solution.search)


def _choices(
    planner: WorkloadPlanner, solution: Solution, tables: Sequence[JobTable]
) -> Iterator[Ints]:
    """A tiling for every job, by what it costs on its core with its operands where they are; of
    equals the first."""
    place, jobs, core = (
        solution.placement,
        np.arange(len(planner.workload.jobs)),
        solution.schedule.core,
    )
    where = (place.read_fast, place.write_fast, place.write_main, place.streamed)
    lasting, linked, joules = [], [], []
    for table in tables:
        times = job_times(table, planner.target, *where)
        own = times.duration[jobs, core] / PICOSECONDS
        lasting.append(own)
        linked.append(own * times.demand[jobs, core].sum(axis=1))
        joules.append(
            EnergyModel(table, planner.energy.rates).of_jobs(*memories_used(table, *where))[
                jobs, core
            ]
        )
    for price in _PRICES:
        yield _least([own + price * link for own, link in zip(lasting, linked, strict=True)])
    if planner.goal.needs_energy:
        yield _least(joules)


def _least(costs: Sequence[Floats]) -> Ints:
    return np.asarray(np.argmin(np.stack(costs), axis=0), dtype=np.int64)
