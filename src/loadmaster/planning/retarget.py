"""A plan for a smaller machine, timed on a larger one: what the smaller can do, the larger can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from loadmaster.core.errors import PlanError
from loadmaster.cost.analytical.energy import EnergyModel, energy_rates
from loadmaster.cost.analytical.job_costs import tiled_table
from loadmaster.planning.decisions import Solution
from loadmaster.planning.workload_planner import WorkloadPlanner
from loadmaster.targets.hardware import Core, Memory, Target


def retargeted(
    planner: WorkloadPlanner, solution: Solution, target: Target
) -> tuple[WorkloadPlanner, Solution]:
    """The same jobs, order, stays and addresses on a machine that :func:`require_smaller` accepts;
    cores have their places there."""
    table = tiled_table(planner.workload, target, planner.tilings)
    larger = replace(
        planner, table=table, target=target, energy=EnergyModel(table, energy_rates(target))
    )
    places = core_places(planner.target, target)
    assert places is not None
    core = np.array(places, dtype=np.int32)[solution.schedule.core]
    return larger, larger.timed(replace(solution, schedule=replace(solution.schedule, core=core)))


def require_smaller(smaller: Target, target: Target) -> None:
    """Refuse a machine that has, or can do, anything that ``target`` does not have or cannot do as
    well."""
    excess = next(_excess(smaller, target), None)
    if excess is not None:
        raise PlanError(
            f"smaller: {excess} of {smaller.name} is not within that of {target.name}: give a"
            " machine of which it has more"
        )


def core_places(smaller: Target, target: Target) -> list[int] | None:
    """For each core of a machine, in order, the first further core of another that can do as well;
    None if there is none for one."""
    places, free = [], iter(enumerate(target.cores))
    for core in smaller.cores:
        place = next(
            (number for number, other in free if next(_core_excess(core, other), None) is None),
            None,
        )
        if place is None:
            return None
        places.append(place)
    return places


def is_within(smaller: Target, target: Target) -> bool:
    """Whether :func:`require_smaller` accepts a machine."""
    return next(_excess(smaller, target), None) is None


def _excess(smaller: Target, target: Target) -> Iterator[str]:
    if len(smaller.cores) > len(target.cores):
        yield "the number of cores"
    elif core_places(smaller, target) is None:
        for one, other in zip(smaller.cores, target.cores, strict=False):
            yield from (f"{one.name}.{name}" for name in _core_excess(one, other))
    pairs = ((smaller.main, target.main), (smaller.fast, target.fast))
    for memory, larger in pairs:
        if memory is not None:
            yield from (
                f"{memory.name}.{name}"
                for name in (("role",) if larger is None else _memory_excess(memory, larger))
            )
    if smaller.copy is not None:
        speeds = ("to_fast", "to_main", "asynchronous_to_fast", "asynchronous_to_main")
        if target.copy is None or any(
            getattr(smaller.copy, name) > getattr(target.copy, name) for name in speeds
        ):
            yield "copy"


def _core_excess(one: Core, other: Core) -> Iterator[str]:
    for name in ("style", "rows", "columns", "flexible", "local_buffer", "winograd", "accumulator"):
        if getattr(one, name) != getattr(other, name):
            yield name
    for name in ("clock", "lanes", "buffer"):
        if getattr(one, name) > getattr(other, name):
            yield name
    if any(rate > other.macs_per_cycle[bits] for bits, rate in one.macs_per_cycle.items()):
        yield "macs_per_cycle"
    if one.efficiency != other.efficiency:
        yield "efficiency"
    if (one.noc_bandwidth or float("inf")) > (other.noc_bandwidth or float("inf")):
        yield "noc_bandwidth"
    if (one.weight_loading or float("inf")) > (other.weight_loading or float("inf")):
        yield "weight_loading"
    if one.start_up < other.start_up:
        yield "job_overhead"


def _memory_excess(one: Memory, other: Memory) -> Iterator[str]:
    for name in ("alignment", "in_place"):
        if getattr(one, name) != getattr(other, name):
            yield name
    for name in ("capacity", "read_bandwidth", "write_bandwidth"):
        if getattr(one, name) > getattr(other, name):
            yield name
