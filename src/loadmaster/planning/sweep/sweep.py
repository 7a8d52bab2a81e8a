"""What more scratchpad or more bandwidth would be worth: one plan for every machine of a design space, in parallel, resumable."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from loadmaster.core.errors import CapacityError, TargetError
from loadmaster.core.progress import Progress, no_progress
from loadmaster.planning.sweep.design_space import Axes, DesignPoint, Sweep, machine
from loadmaster.planning.sweep.heirs import Heirs
from loadmaster.planning.sweep.store import SweepStore, networks_key, point_key
from loadmaster.planning.sweep.workers import local_processes
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph


def sweep(
    graphs: Sequence[Graph],
    target: Target,
    axes: Axes,
    *,
    executor: Executor | None = None,
    store: SweepStore | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep:
    """Plan the same networks on machines with other scratchpads and bandwidths.

    Every point is one plan, with the same ``options``, so that its answer is the one that :func:`loadmaster.plan` gives for that machine,
    whoever works it out. Where the makespan counts and a machine with less memory and bandwidth has a shorter one, the point is planned
    once more with that machine as ``smaller``: so more of either is not slower. Points that the store has are not planned again. Ctrl-C
    ends the sweep with the points that are finished.

    Parameters
    ----------
    graphs, target
        As for :func:`loadmaster.plan`.
    axes : Axes
        The values; an axis without any stays as the target has it.
    executor : Executor, optional
        Where points are planned: processes of this machine unless told (:mod:`loadmaster.planning.sweep.workers`).
    store : SweepStore, optional
        Where finished points are kept.
    progress : callable, optional
        Called with what is done, in words and as a share.
    **options
        Further arguments of :func:`loadmaster.plan`.

    Raises
    ------
    TargetError
        If scratchpads are to be swept and the target has none.
    """
    machines = _machines(target, axes)
    shared = networks_key(graphs, options)
    keys = [point_key(shared, each) for each in machines]
    found = {key: point for key in keys if store is not None and (point := store.get(key)) is not None}
    reused = len(found)
    report = progress or no_progress

    def keep(key: str, point: DesignPoint) -> None:
        found[key] = point
        if store is not None:
            store.put(key, point)
        report(f"{len(found)} of {len(keys)} points planned", len(found) / len(keys))

    report(f"{reused} of {len(keys)} points are there already", reused / len(keys))
    todo = {key: (each, options) for key, each in zip(keys, machines, strict=True) if key not in found}
    machine_of, heirs = dict(zip(keys, machines, strict=True)), Heirs()
    with nullcontext(executor) if executor is not None else _processes_if(bool(todo)) as workers:
        while todo and workers is not None and _plan_all(workers, graphs, todo, keep):
            slower = heirs.of(found) if options.get("objective", "throughput") == "throughput" else {}
            todo = {key: (machine_of[key], options | {"smaller": machine_of[source]}) for key, source in slower.items()}
    points = tuple(found[key] for key in keys if key in found)
    scratchpads, bandwidths = {size_of(each): None for each in machines}, {bandwidth_of(each): None for each in machines}
    names, precisions = tuple(graph.name for graph in graphs), tuple(graph.precision for graph in graphs)
    costs = (target.costs_by("cost model", len(points)),)
    return Sweep(names, target.name, tuple(scratchpads), tuple(bandwidths), points, reused, precisions, costs)


def _machines(target: Target, axes: Axes) -> list[Target]:
    """The machines of a design space, by bandwidth, then scratchpad."""
    if axes.scratchpads and target.fast is None:
        raise TargetError(f"--sweep scratchpad: {target.name} has no fast memory: sweep the bandwidth only")
    scratchpads = axes.scratchpads or (size_of(target),)
    bandwidths = axes.bandwidths or (None,)
    return [machine(target, scratchpad, bandwidth) for bandwidth, scratchpad in itertools.product(bandwidths, scratchpads)]


def size_of(target: Target) -> int:
    """Bytes of the scratchpad."""
    return 0 if target.fast is None else target.fast.capacity


def bandwidth_of(target: Target) -> float:
    """Bytes/s of main memory, of the slower direction."""
    return min(target.main.read_bandwidth, target.main.write_bandwidth)


def _processes_if(needed: bool) -> AbstractContextManager[Executor | None]:
    return local_processes() if needed else nullcontext()


def _plan_all(
    workers: Executor,
    graphs: Sequence[Graph],
    todo: dict[str, tuple[Target, dict[str, Any]]],
    keep: Callable[[str, DesignPoint], None],
) -> bool:
    """Hand each finished point to ``keep`` at once; after Ctrl-C no further one is begun. Whether all are finished."""
    futures: dict[Future[DesignPoint], str] = {}
    try:
        for key, (each, options) in todo.items():
            futures[workers.submit(plan_point, tuple(graphs), each, options)] = key
        for future in as_completed(futures):
            keep(futures[future], future.result())
        return True
    except KeyboardInterrupt:
        return False
    finally:
        for future in futures:
            future.cancel()


def plan_point(graphs: Sequence[Graph], target: Target, options: dict[str, Any]) -> DesignPoint:
    """Plan for one machine, and check the plan."""
    from loadmaster.planning.planner import plan
    from loadmaster.planning.verify.plan import verify

    size, bandwidth = size_of(target), bandwidth_of(target)
    try:
        result = plan(graphs, target, **options)
    except CapacityError as error:
        return DesignPoint(size, bandwidth, "no plan", reason=str(error))
    metrics = result.metrics
    return DesignPoint(
        scratchpad=size,
        bandwidth=bandwidth,
        status=result.status,
        makespan=metrics.makespan.value,
        lower_bound=metrics.makespan.lower_bound,
        throughput=metrics.throughput.value,
        inferences_per_second=metrics.inferences_per_second.value,
        traffic_bytes=int(metrics.traffic[target.main.name].value),
        peak=0 if target.fast is None else metrics.memory[target.fast.name].peak,
        energy=metrics.energy.value,
        energy_bound=metrics.energy.lower_bound,
        gap=result.objective.gap,
        missed=result.missed,
        violations=len(verify(result)),
    )
