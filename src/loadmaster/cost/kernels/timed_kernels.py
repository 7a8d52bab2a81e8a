"""The measured kernels of a network as rows of a table: seconds in every combination of places,
with the work that was done."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.cost.analytical.nests import kind_of
from loadmaster.cost.kernels.kernel_costs import kernel_work
from loadmaster.cost.kernels.kernel_times import KernelTimes, Setting, case_of
from loadmaster.cost.kernels.measured_kernels import measured_seconds
from loadmaster.cost.kernels.work import KernelWork, SequenceWork
from loadmaster.cost.tables.measured_times_csv import Amounts, TimedKernel
from loadmaster.workloads.graph import Graph


def timed_kernels(graph: Graph, times: KernelTimes, threads: int) -> Iterator[TimedKernel]:
    """Iterate over the rows of every kernel that was measured here in all of its combinations;
    equal kernels have equal rows. Linear."""
    known = times.all()
    setting = Setting.here(threads)
    work = kernel_work(graph)
    ops = {op.name: op for op in graph.ops}
    for kernel in work.kernels:
        case = case_of(graph, ops[kernel.name])
        found = None if case is None else measured_seconds(case, known, setting)
        for places, seconds in (found or {}).items():
            yield TimedKernel(
                kernel.name, " ".join(sorted(places)), seconds, _amounts(work, kernel, places)
            )


def _amounts(work: SequenceWork, kernel: KernelWork, slow: frozenset[str]) -> Amounts:
    moved = dict.fromkeys(("fast_read", "fast_written", "slow_read", "slow_written"), 0)
    for use in kernel.operands:
        where = "slow" if work.tensors[use.tensor].name in slow else "fast"
        moved[f"{where}_read"] += use.read.bytes if use.read else 0
        moved[f"{where}_written"] += use.write.bytes if use.write else 0
    kind = kind_of(kernel.kind, kernel.nests)
    return Amounts(kind, kernel.macs, kernel.elements, kernel.bits, **moved)
