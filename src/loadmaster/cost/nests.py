"""Loop nests of many jobs as arrays, one row per distinct nest, so that cost models work on all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.job import Job, Role

Floats = NDArray[np.float64]

_FIELDS = ("groups", "batch", "k", "c", "y", "x", "r", "s", "repeats", "stride_y", "stride_x", "dilation_y", "dilation_x")
_BYTES = ("input_bytes", "weight_bytes", "output_bytes")


@dataclass(frozen=True)
class NestTable:
    """Distinct loop nests, one row each, as float arrays of shape (rows,) (exact: every extent is far below 2^53).

    ``row_of[j, i]`` is the row of nest ``i`` of job ``j``, -1 beyond its last. Nests share a row only if their jobs
    have operands of the same sizes outside the nests, because those take some of the private buffer.
    """

    groups: Floats
    batch: Floats
    k: Floats
    c: Floats
    y: Floats
    x: Floats
    r: Floats
    s: Floats
    repeats: Floats
    stride_y: Floats
    stride_x: Floats
    dilation_y: Floats
    dilation_x: Floats
    input_bytes: Floats
    weight_bytes: Floats
    output_bytes: Floats
    row_of: NDArray[np.int64]

    @property
    def positions(self) -> Floats:
        """Output positions of one group, all of the batch."""
        return self.batch * self.y * self.x

    @property
    def macs(self) -> Floats:
        """Multiply-accumulates of all repeats."""
        return self.groups * self.positions * self.k * self.c * self.r * self.s * self.repeats


def nest_table(jobs: Sequence[Job]) -> NestTable:
    """Collect the nests of all jobs; equal ones share a row. Linear in the number of operands."""
    width = max((len(job.nests) for job in jobs), default=0)
    row_of = np.full((len(jobs), width), -1, dtype=np.int64)
    rows: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for index, job in enumerate(jobs):
        sizes = _operand_bytes(job)
        outside = tuple(operand.bytes for operand in (*job.reads, *job.writes) if operand.nest < 0)
        for position, nest in enumerate(job.nests):
            extents = (nest.groups, nest.batch, nest.k, nest.c, nest.y, nest.x, nest.r, nest.s, nest.repeats)
            numbers = (*extents, *nest.stride, *nest.dilation, *sizes[position])
            row_of[index, position] = rows.setdefault((numbers, (len(job.reads), *outside)), len(rows))
    names = (*_FIELDS, *_BYTES)
    columns = np.array([numbers for numbers, _ in rows], dtype=np.float64).reshape(len(rows), len(names)).T
    return NestTable(**dict(zip(names, columns, strict=True)), row_of=row_of)


def _operand_bytes(job: Job) -> list[list[int]]:
    """Input, weight and output bytes of each nest."""
    sizes = [[0, 0, 0] for _ in job.nests]
    slot = {Role.INPUT: 0, Role.WEIGHT: 1, Role.OUTPUT: 2}
    for operand in (*job.reads, *job.writes):
        if operand.nest >= 0:
            sizes[operand.nest][slot[operand.role]] += operand.bytes
    return sizes
