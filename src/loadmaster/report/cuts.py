"""Describes how a plan cuts operators: dimensions, pieces, cores, and stacks of operators that run
band by band.

Everything follows from the plan's records of the first mini-batch of every network. O(jobs log
jobs).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from loadmaster.core.json_object import json_of
from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.planning.plan_records import PlannedJob, PlannedTensor, PlanRecord
from loadmaster.report.text import comma, plural
from loadmaster.report.timeline import largest, total_over_time

_IMAGES = ("Conv", "Pool", "Resize", "Upsample", "Normalization", "LRN")
"""Substrings of kinds of operators whose results have channels, rows and columns."""


@dataclass(frozen=True)
class Band:
    """Lifetime in seconds of a part of an operator's result, from its write to its last read."""

    job: PlannedJob
    tensor: PlannedTensor
    start: float
    end: float


@dataclass(frozen=True)
class Extent:
    """A cut dimension, and the extents of pieces along it."""

    dimension: str
    """Name of the dimension."""
    least: int
    """Extent of the smallest piece, in elements of the dimension."""
    most: int
    """Extent of the largest piece, in elements of the dimension."""


@dataclass(frozen=True)
class CutOperator:
    """An operator, with operators fused into it, that runs in pieces. ``along`` are the cut
    dimensions of its result, and ``stack`` is the number of its stack or None."""

    jobs: tuple[PlannedJob, ...]
    bands: tuple[Band, ...]
    along: tuple[Extent, ...]
    stack: int | None = None

    @property
    def network(self) -> str:
        """The network."""
        return self.jobs[0].network

    @property
    def operator(self) -> str:
        """Name of the first of the fused operators."""
        return self.jobs[0].operators[0]

    @property
    def cores(self) -> int:
        """Number of cores that run pieces."""
        return len({job.core for job in self.jobs})

    @property
    def results(self) -> list[Band]:
        """Bands of the result, without sums that are not complete."""
        return [band for band in self.bands if not band.tensor.summed]

    @property
    def bytes(self) -> int:
        """Bytes of the results."""
        return sum(band.tensor.bytes for band in self.results)

    @cached_property
    def at_once(self) -> int:
        """Largest number of pieces that run at the same time."""
        running = total_over_time((job.start, job.end, 1) for job in self.jobs)
        return int(largest(running)[2])

    @cached_property
    def most_alive(self) -> int:
        """Most bytes of the results alive at once."""
        waiting = total_over_time((b.start, b.end, b.tensor.bytes) for b in self.results)
        return int(largest(waiting)[2])

    def how(self) -> str:
        """Description of the cut."""
        return comma(
            f"{each.dimension}, {each.least}"
            f"{f' to {each.most}' if each.most > each.least else ''} each"
            for each in self.along
        )


@dataclass(frozen=True)
class CutJson:
    """An operator in pieces."""

    network: str
    """Name of the network."""
    operator: str
    """Name of the first operator."""
    operators: Sequence[str]
    """Names of the operators that are fused in it."""
    pieces: int
    """Number of pieces."""
    along: Sequence[Extent]
    """Dimensions that are cut."""
    cores: int
    """Number of cores that run pieces."""
    at_once: int
    """Largest number of pieces that run at the same time."""
    bytes: int
    """Bytes of the result."""
    most_alive: int
    """Most bytes of the result that wait for readers at once."""
    stack: int | None
    """Number of the stack of bands that it belongs to; null if to none."""
    why: str
    """Purpose of the cut in words; the wording is not stable."""


Stack = tuple[CutOperator, ...]
"""Operators that run band by band, depth first, in the order in which they begin."""


@dataclass(frozen=True)
class PlanCuts:
    """All cut operators and stacks of a plan, by their start."""

    operators: tuple[CutOperator, ...]
    stacks: tuple[Stack, ...]

    def why(self, operator: CutOperator) -> str:
        """Return the purpose of an operator's cut, derived from the plan."""
        reasons = []
        if operator.at_once > 1:
            busy = math.fsum(job.end - job.start for job in operator.jobs)
            span = max(j.end for j in operator.jobs) - min(j.start for j in operator.jobs)
            reasons.append(
                f"across cores: {operator.at_once} at once, {format_seconds(busy)} of work in"
                f" {format_seconds(span)}"
            )
        if operator.stack is not None:
            reasons.append(
                f"through memory, in a stack of {len(self.stacks[operator.stack])}: at most"
                f" {format_bytes(operator.most_alive)} of {format_bytes(operator.bytes)} waits for"
                " readers"
            )
        sums = max((b.tensor.bytes for b in operator.bands if b.tensor.summed), default=0)
        if sums:
            reasons.append(
                "otherwise the operands of its pieces would exceed the fast memory, or be too"
                f" many: each piece adds to up to {format_bytes(sums)} of sums"
            )
        return "; ".join(reasons) or "piece after piece, as its neighbours are cut"

    def summary(self) -> str:
        """Return a line on the plan's cuts; empty if there are none."""
        if not self.operators:
            return ""
        pieces = sum(len(operator.jobs) for operator in self.operators)
        across = sum(operator.at_once > 1 for operator in self.operators)
        text = (
            f"Cut: {plural(len(self.operators), 'operator')} in {pieces:,} pieces, {across} of"
            " these operators on several cores at once"
        )
        if not self.stacks:
            return f"{text}."
        most = max(map(len, self.stacks))
        bands = max(len(operator.jobs) for stack in self.stacks for operator in stack)
        return (
            f"{text}; {plural(len(self.stacks), 'stack')} of up to {most}"
            f" operators and {bands} bands."
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Return a `CutJson` for each operator in pieces."""
        return [
            json_of(
                operator,
                CutJson,
                operators=operator.jobs[0].operators,
                pieces=len(operator.jobs),
                why=self.why(operator),
            )
            for operator in self.operators
        ]


def family(job: PlannedJob) -> str:
    """Return the name of a job without the number of the piece."""
    return job.name.removesuffix(f"[{job.tile}/{job.tiles}]")


def piece(job: PlannedJob) -> str:
    """Return the number of a job's piece as text; empty for whole operators."""
    if job.tiles == 1:
        return ""
    ranges = ", ".join(f"{first}:{last}" for first, last in job.ranges)
    terms = f", terms {job.summed[0]}:{job.summed[1]} of its sum" if job.summed else ""
    return f"{job.tile + 1} of {job.tiles}, [{ranges}] of the result{terms}"


def cuts_of(plan: PlanRecord) -> PlanCuts:
    """Return the cut operators and stacks of a plan."""
    groups: dict[tuple[str, tuple[str, ...]], list[PlannedJob]] = defaultdict(list)
    for job in sorted(plan.jobs, key=lambda job: (job.start, job.name)):
        if job.tiles > 1 and job.mini_batch == 0:
            groups[job.network, job.operators].append(job)
    readers: dict[str, list[PlannedJob]] = defaultdict(list)
    for job in plan.jobs:
        for name in {operand.tensor for operand in job.reads}:
            readers[name].append(job)
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    shapes = {
        (network.name, operator.name): operator.shape
        for network in plan.networks
        for operator in network.operators
    }
    found = []
    for (network, operators), jobs in groups.items():
        jobs.sort(key=lambda job: job.tile)
        bands = []
        for job in jobs:
            for name in sorted({operand.tensor for operand in job.writes}):
                end = max((reader.end for reader in readers[name]), default=job.end)
                bands.append(Band(job, tensors[name], job.start, end))
        along = _cut_extents(jobs, shapes[network, operators[0]])
        found.append(CutOperator(tuple(jobs), tuple(bands), along))
    return _join_stacks(found, readers)


def _cut_extents(jobs: Sequence[PlannedJob], shape: Sequence[int]) -> tuple[Extent, ...]:
    """Return the dimensions, or reductions, that pieces cut, with the least and the greatest extent
    of a piece."""
    names, found = _dimensions(jobs[0].kind, len(shape)), []
    for axis, extent in enumerate(shape if jobs[0].ranges else ()):
        sizes = [job.ranges[axis][1] - job.ranges[axis][0] for job in jobs]
        if min(sizes) < extent:
            found.append(Extent(names[axis], min(sizes), max(sizes)))
    terms = [job.summed[1] - job.summed[0] for job in jobs if job.summed]
    if terms:
        found.append(Extent("terms of the sum", min(terms), max(terms)))
    return tuple(found)


def _dimensions(kind: str, rank: int) -> list[str]:
    """Return names of a result's dimensions, derived from its rank and the kind of operator."""
    images = rank > 4 or any(part in kind for part in _IMAGES)
    leading = ["batch", "channels" if images else "channels or heads"] if rank > 3 else []
    between = [f"dimension {axis}" for axis in range(len(leading), rank - 2)]
    return [*leading, *between, *("rows", "columns")[2 - min(2, rank) :]]


def _join_stacks(
    operators: Sequence[CutOperator], readers: dict[str, list[PlannedJob]]
) -> PlanCuts:
    """Join operators into stacks: one reads a band of the other before the other's last band has
    begun."""
    home = {job.name: number for number, operator in enumerate(operators) for job in operator.jobs}
    group = list(range(len(operators)))
    for number, operator in enumerate(operators):
        last = max(job.start for job in operator.jobs)
        for reader in (r for band in operator.bands for r in readers[band.tensor.name]):
            if reader.name in home and reader.start < last:
                first, other = sorted((group[number], group[home[reader.name]]))
                if first != other:
                    group = [first if each == other else each for each in group]
    members = Counter(group)
    large = [each for each in dict.fromkeys(group) if members[each] > 1]
    marked = [
        replace(operator, stack=large.index(mine) if mine in large else None)
        for operator, mine in zip(operators, group, strict=True)
    ]
    stacks = (tuple(o for o in marked if o.stack == at) for at in range(len(large)))
    return PlanCuts(tuple(marked), tuple(stacks))
