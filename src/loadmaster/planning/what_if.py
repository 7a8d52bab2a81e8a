"""Effects of changes of the machine, each estimated by a quick plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.effort import Effort
from loadmaster.core.errors import CapacityError, PlanError, TargetError
from loadmaster.core.progress import Progress, no_progress
from loadmaster.planning.planner import as_networks, plan
from loadmaster.targets.hardware import Style, Target, is_within
from loadmaster.targets.load import as_target


@dataclass(frozen=True)
class Change:
    """A change of the machine, with objective and makespan of a quick plan; None if the changed
    machine cannot run the networks."""

    name: str
    """Description of the change."""
    value: float | None
    """The objective, in its SI unit; null if the machine cannot run the networks."""
    makespan: float | None
    """The makespan in seconds; null likewise."""
    missed: int = 0
    """Number of mini-batches that miss their deadline."""


@validate_arguments(PlanError)
def what_if(
    graphs: Any, target: Target | str | Path, *, progress: Progress = no_progress, **options: Any
) -> tuple[Change, ...]:
    """Plan networks quickly for a machine and for each of its :func:`changes`.

    The first result is the unchanged machine, planned with the same effort for comparison. A larger
    machine that ends slower is planned again with that as ``smaller``. ``options`` are those of
    :func:`loadmaster.plan`.
    """
    graphs, target = as_networks(graphs), as_target(target)
    machines = [("as it is", target), *changes(target)]
    options["effort"] = Effort.QUICK
    found: list[Change] = []
    for name, machine in machines:
        progress(f"what if: {name}", len(found) / len(machines))
        try:
            reached = plan(graphs, machine, **options)
            if (
                found
                and (reached.missed, reached.objective.value)
                > (found[0].missed, found[0].value or 0.0)
                and is_within(target, machine)
            ):
                reached = plan(graphs, machine, **options, smaller=target)
        except (CapacityError, TargetError):
            found.append(Change(name, None, None))
            continue
        found.append(
            Change(name, reached.objective.value, reached.metrics.makespan.value, reached.missed)
        )
    return tuple(found)


def changes(target: Target) -> Iterator[tuple[str, Target]]:
    """Machines that differ in one thing: twice each link, twice the fast memory, copies twice as
    fast, one core more, another dataflow."""
    for number, memory in enumerate(target.memories):
        faster = target.with_memory(
            number,
            read_bandwidth=2 * memory.read_bandwidth,
            write_bandwidth=2 * memory.write_bandwidth,
        )
        yield f"twice the bandwidth of {memory.name}", faster
        if number > 0:
            larger = target.with_memory(number, capacity=2 * memory.capacity)
            yield f"twice the capacity of {memory.name}", larger
    if target.copy:
        twice = tuple(2 * rate for rate in target.copy.overlapping)
        yield "copies twice as fast", replace(target, copy=replace(target.copy, overlapping=twice))
    first = target.cores[0]
    cores = *target.cores, replace(first, name=f"{first.name}+")
    yield f"one more core like {first.name}", replace(target, cores=cores)
    for style in Style:
        cores = tuple(replace(core, style=style) for core in target.cores)
        if style is not Style.ROOFLINE and cores != target.cores:
            yield f"all cores {style}", replace(target, cores=cores)
