"""From what a user names to a kernel sequence: a network file, a torch factory, or a sequence that was written before; with costs."""

from __future__ import annotations

from pathlib import Path

from loadmaster.core.errors import PlacementError
from loadmaster.cost.kernels.kernel_costs import kernel_sequence
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.sequence_json import read_sequence_file
from loadmaster.targets.hardware import Target
from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.graph import Graph

ROOFLINE, PROFILE = "roofline", "profile"
_WRITTEN = (".json", ".json.gz")


def read_sequence(
    source: str, target: Target, *, training: bool = False, batch: int | None = None, cost: str = ROOFLINE, threads: int | None = None
) -> KernelSequence:
    """Read a graph and cost its kernels.

    Parameters
    ----------
    source
        ``.onnx``, ``onnx:NAME``, ``torch:module.path:factory``, or a sequence from
        :func:`~loadmaster.placement.sequence_json.write_sequence` (``.json``, ``.json.gz``), whose costs stay as they are.
    target
        A machine with one core, a main memory and a fast one.
    training
        Capture the whole training step of a torch module.
    batch
        Leading dimension of the inputs.
    cost
        ``roofline``: estimated from the target's figures. ``profile``: measured on this machine with ``loadmaster profile``. Else a CSV
        file of measured times, with columns ``kernel,combination,seconds``.
    threads
        With which kernels were measured; those that torch takes by itself if not given.

    Raises
    ------
    ModelError
        If the network cannot be read.
    PlacementError
        If it cannot be costed.
    """
    if source.endswith(_WRITTEN):
        if training or batch is not None or cost != ROOFLINE:
            raise PlacementError(f"{source}: a written sequence has its batch and its costs: leave out --training, --batch and --cost")
        return read_sequence_file(Path(source))
    graph = load(source, batch=batch, training=training)
    return _costed(kernel_sequence(graph, target), graph, cost, threads)


def _costed(sequence: KernelSequence, graph: Graph, cost: str, threads: int | None) -> KernelSequence:
    """The sequence with measured times, if they are asked for."""
    if cost == ROOFLINE:
        return sequence
    if cost == PROFILE:
        from loadmaster.cost.kernels.kernel_times import KernelTimes, default_threads, profile_place
        from loadmaster.cost.kernels.measured_kernels import measured_tables

        return measured_tables(sequence, graph, KernelTimes(profile_place()), threads or default_threads())
    if not Path(cost).is_file():
        raise PlacementError(f"cost {cost!r}: give roofline, profile, or a file of measured times (kernel,combination,seconds)")
    from loadmaster.cost.kernels.measured_kernels import tabled
    from loadmaster.cost.tables.kernel_times_csv import read_kernel_times

    return tabled(sequence, read_kernel_times(cost), cost)
