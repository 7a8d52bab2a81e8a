"""What the model says of measured work, term by term, at a target's figures: arithmetic and the
seconds of each link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadmaster.core.arguments import instead
from loadmaster.core.arrays import grouped_sums
from loadmaster.core.errors import JobError
from loadmaster.cost.analytical.job_costs import job_costs
from loadmaster.cost.analytical.nests import kind_of, width_of
from loadmaster.cost.tables.measured_times_csv import COPY, TimedKernel, TimedLayer
from loadmaster.targets.hardware import COPY_FIELDS, Core, Memory, Style, Target
from loadmaster.workloads.frontends.job_list import job_list_of
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload
from loadmaster.workloads.lowering.instantiate import lower

_SLOWLY = 2.0**-20


class Observation(NamedTuple):
    """One measured time, and the parts of the model's answer for it.

    Attributes
    ----------
    group
        A name that equal work shares: cross-validation keeps it together.
    kind
        The kind of operator, under which a target states its efficiency.
    core
        The core's table in the target file.
    seconds
        What was measured.
    arithmetic
        Seconds on the core at full efficiency and without overhead.
    fixed
        Seconds besides, at the target's figures: first and last tiles, and what the on-chip network
        takes beyond arithmetic.
    links
        Fields of the target (``dram.read_bandwidth``), each with the seconds of that link at the
        target's figure.
    """

    group: str
    kind: str
    core: str
    seconds: float
    arithmetic: float
    fixed: float
    links: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class MeasuredCopy:
    """A measured copy: the field of the target's ``copy`` table that it informs, bytes and
    seconds."""

    field: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Observations:
    """All that was measured: rows in the order of the file, and copies; ``skipped`` says which rows
    tell nothing of this target."""

    rows: tuple[Observation, ...]
    copies: tuple[MeasuredCopy, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """A target with the tables of its file: ``cores`` by table name, and for each memory the field
    of either direction."""

    target: Target
    cores: Mapping[str, Core]
    fields: Mapping[str, tuple[str, str]]

    @property
    def bare(self) -> Target:
        """The target with all cores at full efficiency and without overheads."""
        cores = (
            replace(core, efficiency={}, job_overhead=0.0, noc_latency=0.0)
            for core in self.target.cores
        )
        return replace(self.target, cores=tuple(cores))

    def link(self, memory: Memory, read: float, written: float) -> tuple[tuple[str, float], ...]:
        """Fields that state a memory's bandwidth, with the seconds of its link."""
        reading, writing = self.fields[memory.name]
        seconds = {reading: read / memory.read_bandwidth}
        seconds[writing] = seconds.get(writing, 0.0) + written / memory.write_bandwidth
        return tuple((name, value) for name, value in seconds.items() if value)


def kernels_observed(machine: Machine, timed: Sequence[TimedKernel], source: str) -> Observations:
    """Terms of kernels that ran on a target with one roofline core: its arithmetic, its fast
    memory, and its main one where that is used.

    Raises :class:`~loadmaster.core.errors.JobError` for another kind of target.
    """
    target = machine.target
    (name, core), *others = machine.cores.items()
    if others or core.style is not Style.ROOFLINE or target.fast is None:
        raise JobError(
            f"{source}: times of kernels calibrate a target with one roofline core and a fast"
            f" memory, and {target.name} is none: give times of layers (K,C,Y,X,R,S,type,seconds)"
            " or operators (op,seconds)"
        )
    rows, copies, barred = [], [], 0
    for kernel in timed:
        amounts = kernel.amounts
        if amounts.kind == COPY:
            copies.append(_copy(kernel, source))
            continue
        slow = amounts.slow_read + amounts.slow_written
        if slow and not target.main.in_place:
            barred += 1
            continue
        links = machine.link(target.fast, amounts.fast_read, amounts.fast_written)
        links += machine.link(target.main, amounts.slow_read, amounts.slow_written)
        per_cycle = core.rows * core.columns * core.macs_per_cycle[width_of(amounts.bits)]
        arithmetic = max(
            amounts.macs / (core.clock * per_cycle), amounts.elements / (core.lanes * core.clock)
        )
        moved = amounts.fast_read + amounts.fast_written + slow
        group = f"{amounts.kind} {amounts.macs} {amounts.elements} {moved}"
        rows.append(Observation(group, amounts.kind, name, kernel.seconds, arithmetic, 0.0, links))
    skipped = f"{barred} rows with tensors in {target.main.name}, which kernels cannot use in place"
    return Observations(tuple(rows), tuple(copies), (skipped,) * bool(barred))


def _copy(kernel: TimedKernel, source: str) -> MeasuredCopy:
    """Return the time of a measured copy with its field and its bytes; raise JobError if the field
    is not a copy bandwidth."""
    field = kernel.kernel.removeprefix("copy.")
    if field not in COPY_FIELDS:
        raise JobError(f"{source}: {kernel.kernel!r} is no copy: {instead(field, COPY_FIELDS)}")
    amounts = kernel.amounts
    return MeasuredCopy(
        field,
        max(amounts.fast_read + amounts.fast_written, amounts.slow_read + amounts.slow_written),
        kernel.seconds,
    )


def layers_observed(
    machine: Machine, timed: Sequence[TimedLayer], network: Graph | None, source: str
) -> Observations:
    """Terms of layers by shape or of a network's operators, each loading and storing its operands
    from and to main memory.

    Operators that are fused into one job were measured together with it, or one by one: their times
    add up.

    Raises :class:`~loadmaster.core.errors.JobError` for unknown operators and cores, and for
    operators without a network.
    """
    if not timed[0].operator:
        layers = [each.row for each in timed]
        work = job_list_of(layers, Path(source).name.removesuffix(".csv"), source)
        found = [(job, each.core, each.seconds, each.row.place) for job, each in enumerate(timed)]
        return _terms_of(machine, work, found)
    if network is None:
        raise JobError(f"{source}: holds operators by name: say of which network, with --network")
    work = lower([network], replace(machine.target, memories=machine.target.memories[:1]))
    owner = {name: number for number, job in enumerate(work.jobs) for name in job.operators}
    sums: dict[tuple[int, str], tuple[float, str]] = {}
    for each in timed:
        if each.operator not in owner:
            raise JobError(
                f"{each.row.place}: {network.name} has no operator {each.operator!r} that takes"
                f" time: {instead(each.operator, owner)}"
            )
        key = owner[each.operator], each.core
        seconds, place = sums.get(key, (0.0, each.row.place))
        sums[key] = seconds + each.seconds, place
    return _terms_of(
        machine, work, [(number, core, *value) for (number, core), value in sums.items()]
    )


def _terms_of(
    machine: Machine, work: Workload, timed: Sequence[tuple[int, str, float, str]]
) -> Observations:
    """Return the terms of measurements (job, core, seconds, place), as the cost model has them."""
    bare, names = machine.bare, list(machine.cores)
    costs = job_costs(work, bare)
    # All arithmetic a million times slower.
    slow = {kind_of(job.kind, job.nests): _SLOWLY for job in work.jobs}
    slow_cores = tuple(replace(core, efficiency=slow) for core in bare.cores)
    slowly = job_costs(work, replace(bare, cores=slow_cores))
    # The kind of core that each table describes, by its first core.
    kinds = costs.position[[machine.target.cores.index(core) for core in machine.cores.values()]]
    rows, operands = [], costs.operands
    moved = np.stack([costs.kinds[kind].moved for kind in kinds], axis=1)
    read, written = (
        grouped_sums(operands.job[mine], moved[mine], len(work.jobs))
        for mine in (~operands.write, operands.write)
    )
    for index, core, seconds, place in timed:
        number = _core(machine, core, place)
        job = work.jobs[index]
        # So slow, arithmetic is all that counts.
        arithmetic = float(slowly.kinds[kinds[number]].seconds[index]) * _SLOWLY
        fixed = max(0.0, float(costs.kinds[kinds[number]].seconds[index]) - arithmetic)
        links = machine.link(bare.main, read[index, number], written[index, number])
        group = repr((job.kind, job.nests, job.elements, job.bits))
        kind = kind_of(job.kind, job.nests)
        rows.append(Observation(group, kind, names[number], seconds, arithmetic, fixed, links))
    return Observations(tuple(rows))


def _core(machine: Machine, name: str, place: str) -> int:
    """Return the number of the table of cores that a row names; the only one if it names none."""
    names = list(machine.cores)
    if not name and len(names) == 1:
        return 0
    if not name:
        raise JobError(
            f"{place}: says no core, and {machine.target.name} has {', '.join(names)}: add a column"
            " core"
        )
    for number, table in enumerate(names):
        if name == table or (name.startswith(table) and name[len(table) :].isdecimal()):
            return number
    raise JobError(f"{place}: {machine.target.name} has no core {name!r}: {instead(name, names)}")
