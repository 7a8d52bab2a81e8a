"""The measured kernels of a network as rows of a table: seconds in every combination of places,
with the work that was done."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from loadmaster.cost.analytical.nests import kind_of
from loadmaster.cost.kernels.kernel_costs import kernel_work
from loadmaster.cost.kernels.kernel_times import KernelTimes
from loadmaster.cost.kernels.measured_kernels import measured_cases
from loadmaster.cost.kernels.work import KernelWork, SequenceWork
from loadmaster.cost.tables.measured_times_csv import Amounts, TimedKernel
from loadmaster.workloads.graph import Graph


def timed_kernels(graph: Graph, times: KernelTimes, threads: int) -> Iterator[TimedKernel]:
    """Iterate over the rows of every kernel that was measured here in all of its combinations;
    equal kernels have equal rows. Linear."""
    found, work = measured_cases(graph, times, threads), kernel_work(graph)
    for kernel in work.kernels:
        for places, seconds in found.get(kernel.name, ({},))[0].items():
            names = io.StringIO()
            csv.writer(names, delimiter=" ", lineterminator="").writerow(sorted(places))
            yield TimedKernel(
                kernel.name, names.getvalue(), seconds, _amounts(work, kernel, places)
            )


def _amounts(work: SequenceWork, kernel: KernelWork, slow: frozenset[str]) -> Amounts:
    """Return a kernel's work and its bytes by memory, with the tensors of ``slow`` in the slow
    one."""
    moved = dict.fromkeys(("fast_read", "fast_written", "slow_read", "slow_written"), 0)
    for use in kernel.operands:
        where = "slow" if work.tensors[use.tensor].name in slow else "fast"
        moved[f"{where}_read"] += use.read.bytes if use.read else 0
        moved[f"{where}_written"] += use.write.bytes if use.write else 0
    return Amounts(
        kind_of(kernel.kind, kernel.nests), kernel.macs, kernel.elements, kernel.bits, **moved
    )
