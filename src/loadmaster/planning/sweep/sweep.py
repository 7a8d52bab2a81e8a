"""Design-space exploration: one plan for every point, in parallel, resumable."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

from loadmaster.core.arguments import require_known, validate_arguments
from loadmaster.core.errors import PlanError
from loadmaster.core.names import unique_names
from loadmaster.core.progress import Progress, no_progress
from loadmaster.cost.analytical.energy import area
from loadmaster.planning.planner import as_networks, plan
from loadmaster.planning.sweep.axes import BATCH, MINI_BATCHES, NETWORKS, Axis, machine, plain
from loadmaster.planning.sweep.design_space import Sweep, SweptNetwork
from loadmaster.planning.sweep.limits import Limits
from loadmaster.planning.sweep.orders import WarmStarts, order_of
from loadmaster.planning.sweep.points import DesignPoint, PointInput, plan_point
from loadmaster.planning.sweep.store import SweepStore, networks_key, point_key
from loadmaster.planning.sweep.workers import local_processes
from loadmaster.targets.hardware import Target
from loadmaster.targets.load import as_target
from loadmaster.workloads.graph import Graph, TensorKind

Loader = Callable[[int], Sequence[Graph]]
"""A function that reads the networks with a given batch size."""


@validate_arguments(PlanError)
def sweep(
    graphs: Any,
    target: Target | str | Path,
    axes: Iterable[Axis],
    *,
    limits: Limits | None = None,
    load: Loader | None = None,
    executor: Executor | None = None,
    store: SweepStore | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep:
    """Plan networks on machines that differ in some fields, or with different batches.

    Every point is one :func:`loadmaster.plan` with the same ``options``. If the objective is the
    makespan and a machine that is no better has a shorter one, the point is planned once more with
    that machine as ``smaller``. Points in the store are not planned again. Ctrl-C ends the sweep
    with the finished points.

    Parameters
    ----------
    graphs, target
        As for :func:`loadmaster.plan`.
    axes : sequence of Axis
        From :func:`loadmaster.parse_axes`: fields of the target, or ``networks``, ``batch`` and
        ``mini_batches``.
    limits : Limits, optional
        Limits that a plan must keep.
    load : callable, optional
        Takes a batch size and returns the networks; needed for an axis ``batch`` only.
    executor : Executor, optional
        Runs the plans; by default processes of this machine
        (:mod:`loadmaster.planning.sweep.workers`).
    store : SweepStore, optional
        Keeps finished points.
    progress : callable, optional
        Called with a description of the stage and the completed share.
    **options
        Further arguments of :func:`loadmaster.plan`.

    Raises
    ------
    TargetError
        If the target has no such field, or a value is not valid for it.
    PlanError
        If a network of an axis is not given, or :func:`loadmaster.plan` does not accept an
        argument.
    """
    for name in options:
        require_known("argument", name, signature(plan).parameters, PlanError)
    graphs, target, axes = as_networks(graphs), as_target(target), tuple(axes)
    limits = limits or Limits()
    if limits.deadlines:
        options["deadlines"] = {**(options.get("deadlines") or {}), **limits.deadlines}
    points = list(_points(graphs, target, axes, load, options))
    shared = {id(point.graphs): networks_key(point.graphs) for point in points}

    def key_of(point: PointInput) -> str:
        """Return the key of a point in the store."""
        return point_key(shared[id(point.graphs)], point.options, point.target)

    keys = [key_of(point) for point in points]
    todo = of_key = dict(zip(keys, points, strict=True))
    found: dict[str, DesignPoint] = {}
    report = progress or no_progress

    def keep(key: str, point: DesignPoint) -> None:
        """Keep a point in memory and in the store, and report progress."""
        found[key] = point
        if store is not None:
            store.put(key_of(todo[key]), point)
        report(f"{len(found)} of {len(keys)} points planned", len(found) / len(keys))

    reused = set[str]()
    timed = options.get("objective", "throughput") == "throughput"
    warm_starts = WarmStarts([order_of(axis, target) for axis in axes])
    with local_processes() if executor is None else nullcontext(executor) as workers:
        while todo:
            # The same machine may have been stored by a sweep of other axes.
            there = {
                key: replace(point, at=own.at)
                for key, own in todo.items()
                if store is not None and (point := store.get(key_of(own))) is not None
            }
            found |= there
            reused |= there.keys()
            report(f"{len(reused)} of {len(keys)} points are there already", len(found) / len(keys))
            if not _plan_all(
                workers, {key: own for key, own in todo.items() if key not in there}, keep
            ):
                break
            todo = {
                key: replace(
                    own := of_key[key], options={**own.options, "smaller": of_key[source].target}
                )
                for key, source in warm_starts.of(found if timed else {}).items()
            }
    finished = tuple(
        replace(found[key], at=own.at)
        for key, own in zip(keys, points, strict=True)
        if key in found
    )
    return Sweep(
        tuple(
            SweptNetwork(g.name, g.precision, g.batch, g.macs, g.bytes_of(TensorKind.WEIGHT))
            for g in graphs
        ),
        target,
        axes,
        finished,
        tuple(axis.name for axis in axes if not _changes_area(axis, target)),
        limits,
        len(reused),
        (target.costs_by("cost model", len(finished)),),
        options,
    )


def _points(
    graphs: Sequence[Graph],
    target: Target,
    axes: Sequence[Axis],
    load: Loader | None,
    options: Mapping[str, Any],
) -> Iterator[PointInput]:
    """Yield all combinations of values, the last axis changing fastest."""

    @cache
    def networks(batch: int, names: str) -> tuple[Graph, ...]:
        """Return the networks with these names, with this batch, for which they are read again; 0
        leaves them as they are."""
        if batch and load is None:
            raise PlanError(
                "batch: networks that have been read keep their batch: give load=, a function that"
                " reads them with another"
            )
        return _subset(load(batch) if batch and load else graphs, names)

    for values in itertools.product(*(axis.values for axis in axes)):
        fields = list(zip(axes, values, strict=True))
        at = {axis.name: plain(value) for axis, value in fields}
        chosen = networks(int(at.get(BATCH, 0)), str(at.get(NETWORKS, "")))
        left_out = {graph.name for graph in graphs} - {graph.name for graph in chosen}
        own = dict(options)
        for option in own.keys() & {"deadlines", "periods"}:
            given = (own[option] or {}).items()
            own[option] = {name: value for name, value in given if name not in left_out}
        if MINI_BATCHES in at:
            own[MINI_BATCHES] = int(at[MINI_BATCHES])
        changes = [(axis.name, value) for axis, value in fields if axis.is_machine]
        yield PointInput(chosen, machine(target, changes), at, own)


def _subset(graphs: Sequence[Graph], names: str) -> tuple[Graph, ...]:
    """Select networks by their names, joined by plus signs; all networks if ``names`` is empty."""
    if not names:
        return tuple(graphs)
    by_name = dict(zip(unique_names(graph.name for graph in graphs), graphs, strict=True))
    wanted = names.split("+")
    for name in wanted:
        if name not in by_name:
            raise PlanError(
                f"networks={names}: {name!r} is not among the networks: write their names,"
                f" {', '.join(by_name)}, with + between"
            )
    return tuple(by_name[name] for name in wanted)


def _changes_area(axis: Axis, target: Target) -> bool:
    """Whether the values of an axis give machines of different area."""
    return (
        axis.is_machine
        and len({area(machine(target, [(axis.name, value)])) for value in axis.values}) > 1
    )


def _plan_all(
    workers: Executor, todo: Mapping[str, PointInput], keep: Callable[[str, DesignPoint], None]
) -> bool:
    """Plan all points and pass each finished one to ``keep``; after Ctrl-C no further one is begun.
    Return whether all are finished."""
    futures: dict[Future[DesignPoint], str] = {}
    try:
        for key, point in todo.items():
            futures[workers.submit(plan_point, point)] = key
        for future in as_completed(futures):
            keep(futures[future], future.result())
        return True
    except KeyboardInterrupt:
        return False
    finally:
        # A pool cancels its own calls when it ends; cancelled here, they end in a traceback of its
        # thread where Ctrl-C has ended its processes too.
        for future in () if isinstance(workers, ProcessPoolExecutor) else futures:
            future.cancel()
