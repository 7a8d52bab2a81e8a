"""Puts measured times into kernel sequences: from the file of measured times, or from a table that
the user gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from loadmaster.core.errors import PlacementError
from loadmaster.core.provenance import Label, Provenance
from loadmaster.cost.kernels.kernel_times import Case, KernelTimes, Setting, case_of
from loadmaster.placement.sequence import MOST_TABLED, Algorithm, Kernel, KernelSequence, Operand
from loadmaster.workloads.graph import Graph

Times = Mapping[frozenset[str], float]
"""Seconds of one kernel by the set of tensors that are in the slow memory."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One kernel's estimated and measured seconds with all operands in the fast memory."""

    kernel: str
    kind: str
    estimated: float
    measured: float


def measured_tables(
    sequence: KernelSequence, graph: Graph, times: KernelTimes, threads: int
) -> KernelSequence:
    """Put the times that `loadmaster.cost.kernels.profile.profile` measured on this machine into a
    sequence.

    Operands that were measured in the fast memory only are taken to cost as much in the slow one.
    Kernels without complete measurements keep their estimates, and ``costs`` says how many; times
    of in-place use of a slow memory that kernels cannot use stay infinite.

    Raises :class:`~loadmaster.core.errors.PlacementError` if no kernel was measured with so many
    threads.
    """
    known, setting = times.all(), Setting.here(threads)
    ops = {op.name: op for op in graph.ops}
    kernels = []
    for kernel in sequence.kernels:
        case = case_of(graph, ops[kernel.name])
        found = None if case is None else measured_seconds(case, known, setting)
        kernels.append(
            kernel if case is None or found is None else _tabled(sequence, kernel, found, case)
        )
    count = sum(kernel.measured is not None for kernel in kernels)
    if not count:
        raise PlacementError(
            f"{graph.source}: no kernel was measured here with {threads} threads: run loadmaster"
            f" profile {graph.source}"
        )
    return _labelled(
        sequence, kernels, f"this machine, {setting.processor}, {threads} threads", count
    )


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
        _from_table(sequence, kernel, table[kernel.name]) if kernel.name in table else kernel
        for kernel in sequence.kernels
    ]
    return _labelled(sequence, done, source, len(table))


def comparison(estimated: KernelSequence, measured: KernelSequence) -> tuple[Comparison, ...]:
    """Compare estimated and measured seconds of every kernel that was measured."""
    return tuple(
        Comparison(
            guess.name,
            guess.kind,
            guess.seconds([False] * len(guess.operands)),
            found.measured[0][0],
        )
        for guess, found in zip(estimated.kernels, measured.kernels, strict=True)
        if found.measured is not None
    )


def _labelled(
    sequence: KernelSequence, kernels: list[Kernel], source: str, count: int
) -> KernelSequence:
    """The sequence with ``count`` measured kernels; the others keep what their costs come from."""
    rest = (
        [replace(costs, count=len(kernels) - count) for costs in sequence.costs[:1]]
        if count < len(kernels)
        else []
    )
    return replace(
        sequence, kernels=tuple(kernels), costs=(Provenance(Label.MEASURED, source, count), *rest)
    )


def measured_seconds(
    case: Case, known: Mapping[str, tuple[float, str]], setting: Setting
) -> dict[frozenset[str], float] | None:
    """Return the seconds of a case by the set of storages that are slow, or None if a combination
    is missing."""
    found = {}
    for places in case.combinations:
        row = known.get(case.key(places, setting))
        if row is None:
            return None
        found[frozenset(case.storages[place] for place in places)] = row[0]
    return found


def _tabled(sequence: KernelSequence, kernel: Kernel, times: Times, case: Case) -> Kernel:
    """A kernel with a table over its operands, the largest first if there are too many."""
    moved = frozenset(case.storages[place] for place in case.moved)
    operands = _largest_first(sequence, kernel)
    rows = tuple(
        math.inf if barred else times[places & moved]
        for places, barred in _combinations(sequence, operands)
    )
    return replace(
        kernel,
        operands=operands,
        algorithms=(Algorithm("measured", times[frozenset()]),),
        measured=(rows,),
    )


def _from_table(sequence: KernelSequence, kernel: Kernel, times: Times) -> Kernel:
    operands = _largest_first(sequence, kernel)
    rows = tuple(times.get(places, math.inf) for places, _ in _combinations(sequence, operands))
    return replace(
        kernel,
        operands=operands,
        algorithms=(Algorithm("measured", times[frozenset()]),),
        measured=(rows,),
    )


def _largest_first(sequence: KernelSequence, kernel: Kernel) -> tuple[Operand, ...]:
    if len(kernel.operands) <= MOST_TABLED:
        return kernel.operands
    return tuple(
        sorted(kernel.operands, key=lambda operand: -sequence.tensors[operand.tensor].bytes)
    )


def _combinations(
    sequence: KernelSequence, operands: tuple[Operand, ...]
) -> Iterator[tuple[frozenset[str], bool]]:
    """For every entry of a table the tensors that are slow, and whether one of them cannot be used
    there."""
    names = [sequence.tensors[operand.tensor].name for operand in operands[:MOST_TABLED]]
    barred = [math.isinf(operand.slow_seconds) for operand in operands[:MOST_TABLED]]
    for mask in range(2 ** len(names)):
        slow = [i for i in range(len(names)) if mask >> i & 1]
        yield frozenset(names[i] for i in slow), any(barred[i] for i in slow)
