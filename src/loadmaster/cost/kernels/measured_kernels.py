"""Puts measured times into kernel sequences, from the file of measured times or from a table that
the user gives; and takes them from the file as rows of such a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from loadmaster.core.errors import PlacementError
from loadmaster.core.provenance import Label, Provenance
from loadmaster.cost.analytical.nests import kind_of
from loadmaster.cost.kernels.kernel_costs import kernel_work
from loadmaster.cost.kernels.kernel_times import KernelTimes, case_of, conditions, processor
from loadmaster.cost.kernels.work import KernelWork, SequenceWork
from loadmaster.cost.tables.measured_times_csv import Amounts, TimedKernel
from loadmaster.placement.sequence import MOST_TABLED, Algorithm, Kernel, KernelSequence
from loadmaster.workloads.graph import Graph

Times = Mapping[frozenset[str], float]
"""Seconds of one kernel by the set of tensors that are in the slow memory."""


def measured_tables(
    sequence: KernelSequence, graph: Graph, times: KernelTimes, threads: int
) -> KernelSequence:
    """Put the times that `loadmaster.cost.kernels.profile.profile` measured on this machine into a
    sequence.

    Operands that were measured in the fast memory only are taken to cost as much in the slow one.
    Kernels without complete measurements keep their estimates, and ``costs`` says how many; times
    of in-place use of a slow memory that kernels cannot use stay infinite.

    Raises :class:`~loadmaster.core.errors.PlacementError` if no kernel was measured with so many
    threads, or slow memories of several devices were.
    """
    found = measured_cases(graph, times, threads)
    kernels = [
        _timed(sequence, kernel, *found[kernel.name]) if kernel.name in found else kernel
        for kernel in sequence.kernels
    ]
    count = sum(kernel.measured is not None for kernel in kernels)
    if not count:
        raise PlacementError(
            f"{graph.source}: no kernel was measured here with {threads} threads: run loadmaster"
            f" profile {graph.source}"
        )
    return _label(sequence, kernels, f"this machine, {processor()}, {threads} threads", count)


def tabled(sequence: KernelSequence, table: Mapping[str, Times], source: str) -> KernelSequence:
    """Put the times of a table into a sequence, by kernel name; a combination that the table lacks
    is impossible.

    Raises :class:`~loadmaster.core.errors.PlacementError` for kernels and tensors that there are
    not, and for a kernel of the table without a time for all operands in the fast memory.
    """
    kernels = {kernel.name: kernel for kernel in sequence.kernels}
    for name, times in table.items():
        if name not in kernels:
            raise PlacementError(f"{source}: {sequence.name} has no kernel {name!r}")
        mine = {sequence.tensors[operand.tensor].name for operand in kernels[name].operands}
        for places in times:
            if places - mine:
                raise PlacementError(
                    f"{source}: kernel {name!r} does not use {', '.join(sorted(places - mine))}"
                )
        if frozenset() not in times:
            raise PlacementError(
                f"{source}: kernel {name!r} has no time with all tensors in the fast memory: add a"
                " row without tensors"
            )
    done = [
        _timed(sequence, kernel, table[kernel.name]) if kernel.name in table else kernel
        for kernel in sequence.kernels
    ]
    return _label(sequence, done, source, len(table))


def _label(
    sequence: KernelSequence, kernels: list[Kernel], source: str, count: int
) -> KernelSequence:
    """Return the sequence with ``count`` kernels marked as measured; the others keep the source of
    their costs."""
    left = len(kernels) - count
    rest = [replace(costs, count=left) for costs in sequence.costs[:1] if left]
    return replace(
        sequence, kernels=tuple(kernels), costs=(Provenance(Label.MEASURED, source, count), *rest)
    )


def measured_cases(
    graph: Graph, times: KernelTimes, threads: int
) -> dict[str, tuple[Times, frozenset[str]]]:
    """Return the seconds of every operator that was measured here in all of its combinations, by
    the set of storages that are slow, and the storages that were measured in both memories.

    Raises :class:`~loadmaster.core.errors.PlacementError` if slow memories of several devices were
    measured, as after another network's profile or an interrupted one.
    """
    known, setting, devices = times.all(), conditions(threads), set[str]()
    found: dict[str, tuple[Times, frozenset[str]]] = {}
    for op in graph.ops:
        if (case := case_of(graph, op)) is None:
            continue
        keys = {
            frozenset(case.storages[place] for place in places): case.key(places, setting)
            for places in case.combinations
        }
        if known.keys() >= {*keys.values()}:
            devices |= {known[key][1] for places, key in keys.items() if places}
            found[op.name] = (
                {places: known[key][0] for places, key in keys.items()},
                frozenset(case.storages[place] for place in case.moved),
            )
    if len(devices) > 1:
        raise PlacementError(
            f"{graph.source}: its kernels were measured with slow memories on several devices: run"
            f" loadmaster profile {graph.source} again, to the end, with the --slow that you mean"
        )
    return found


def _timed(
    sequence: KernelSequence, kernel: Kernel, times: Times, moved: frozenset[str] | None = None
) -> Kernel:
    """A kernel with a table over its operands, the largest first if there are too many.

    A combination without a time is impossible. If ``moved`` is given, other tensors take as long
    in either memory, unless they cannot be used in the slow one.
    """
    operands = kernel.operands
    if len(operands) > MOST_TABLED:
        operands = tuple(sorted(operands, key=lambda use: -sequence.tensors[use.tensor].bytes))
    rows = []
    for mask in range(2 ** min(len(operands), MOST_TABLED)):
        slow = [operand for bit, operand in enumerate(operands) if mask >> bit & 1]
        places = frozenset(sequence.tensors[operand.tensor].name for operand in slow)
        if moved is None:
            rows.append(times.get(places, math.inf))
        else:
            barred = any(math.isinf(operand.slow_seconds) for operand in slow)
            rows.append(math.inf if barred else times[places & moved])
    return replace(
        kernel,
        operands=operands,
        algorithms=(Algorithm("measured", times[frozenset()]),),
        measured=(tuple(rows),),
    )


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
