"""Reads a kernel sequence with costs from a network file, a torch factory, or a file of kernel work
or of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from os.path import isfile
from pathlib import Path
from typing import Any

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import LoadmasterError, PlacementError
from loadmaster.cost.kernels.kernel_costs import cost_kernels, kernel_sequence, kernel_work
from loadmaster.cost.kernels.work import FORMAT, work_from_object
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.sequence_json import object_in, read_text, sequence_from_object
from loadmaster.targets.hardware import Target
from loadmaster.targets.load import as_target
from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.graph import Graph

ROOFLINE, PROFILE = "roofline", "profile"
_WRITTEN = (".json", ".json.gz")


@validate_arguments(PlacementError)
def read_sequence(
    source: Any,
    target: Target | str | Path | None = None,
    *,
    training: bool = False,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    precision: str | None = None,
    cost: str = ROOFLINE,
    threads: int | None = None,
) -> KernelSequence:
    """Read a graph and cost its kernels.

    Parameters
    ----------
    source
        A graph, what :func:`loadmaster.load` reads, or a file (``.json``, ``.json.gz``): from
        :func:`~loadmaster.cost.kernels.work.write_work`, with bytes and arithmetic that are
        costed now, or from :func:`~loadmaster.placement.sequence_json.write_sequence`, with costs
        of its own.
    target
        A machine with one core, a main memory and a fast one. None for a file with costs of its
        own, and only for that.
    training
        Capture the whole training step of a torch module.
    batch, dims, precision
        Leading dimension of the inputs, sizes of others, and the width of floating-point tensors,
        as for :func:`loadmaster.load`.
    cost
        ``roofline``: estimated from the target's figures. ``profile``: measured on this machine
        with ``loadmaster profile``. Else a CSV file of measured times, with columns
        ``kernel,combination,seconds``.
    threads
        Threads with which kernels were measured; torch's default if not given.

    Raises
    ------
    ModelError
        If the network cannot be read.
    PlacementError
        If it cannot be costed.
    """
    target = None if target is None else as_target(target)
    adapted = training or batch is not None or dims or precision is not None
    if isinstance(source, str | PathLike) and fspath(source).endswith(_WRITTEN):
        if adapted or cost != ROOFLINE:
            raise PlacementError(
                f"{source}: a written sequence has its sizes and its kernels: leave out --training,"
                " --batch, --dim, --precision and --cost"
            )
        return _read_file(fspath(source), target)
    if target is None:
        raise PlacementError(
            f"{source}: say on which machine, with --target: a bundled one (loadmaster targets) or"
            " a file"
        )
    if isinstance(source, Graph) and adapted:
        raise PlacementError(
            f"{source.name}: a graph has its sizes and its operators: give batch, dims, precision"
            " and training to loadmaster.load"
        )
    graph = (
        source
        if isinstance(source, Graph)
        else load(source, batch=batch, dims=dims, precision=precision, training=training)
    )
    return _with_measured_times(kernel_sequence(graph, target), graph, cost, threads)


def _read_file(source: str, target: Target | None) -> KernelSequence:
    """Return the sequence in a file: costed for the target if it has amounts, else with its own
    costs."""
    data = object_in(read_text(Path(source)), source)
    if data.get("format") != FORMAT:
        sequence = sequence_from_object(data, source)
        if target is not None:
            raise PlacementError(
                f"{source}: has costs of its own and no amounts from which those of {target.name}"
                " follow: leave out --target and --set, and give --fast"
            )
        return sequence
    work = work_from_object(data, source)
    if target is None:
        raise PlacementError(
            f"{source}: has amounts and no costs: say on which machine, with --target"
        )
    try:
        return cost_kernels(work, target)
    except LoadmasterError as error:
        raise PlacementError(f"{source}: {error}") from None


def _with_measured_times(
    sequence: KernelSequence, graph: Graph, cost: str, threads: int | None
) -> KernelSequence:
    """Return the sequence, with measured times if they are requested."""
    if cost == ROOFLINE:
        return sequence
    if cost == PROFILE:
        from loadmaster.cost.kernels.kernel_times import KernelTimes, default_threads, profile_place
        from loadmaster.cost.kernels.measured_kernels import measured_tables

        return measured_tables(
            sequence, graph, KernelTimes(profile_place()), threads or default_threads()
        )
    if not isfile(cost):
        raise PlacementError(
            f"cost {cost!r}: give roofline, profile, or a file of measured times"
            " (kernel,combination,seconds)"
        )
    from loadmaster.cost.kernels.measured_kernels import tabled
    from loadmaster.cost.tables.measured_times_csv import read_kernel_times

    work = {each.name: (each.macs, each.elements, each.bits) for each in kernel_work(graph).kernels}
    return tabled(sequence, read_kernel_times(cost, work), cost)
