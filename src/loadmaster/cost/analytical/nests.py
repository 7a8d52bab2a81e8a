"""Loop nests of many jobs as arrays, one row per distinct nest, so that cost models work on all of
them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import isqrt

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.targets.hardware import Core
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Job, Role


def kind_of(kind: str, nests: Sequence[LoopNest]) -> str:
    """Return the kind under which a target states the efficiency of an operator.

    That is the operator's own (``Conv``, ``MatMul``, ``convolution``), and for convolutions with
    one input channel in each group ``DepthwiseConv`` or, where names begin with a small letter,
    ``depthwise_convolution``. Pieces of an operator are of its kind: they have all of its input
    channels and taps.
    """
    depthwise = bool(nests) and nests[0].c == 1 and nests[0].r * nests[0].s > 1
    if not depthwise or kind.lower().startswith("depthwise"):
        return kind
    return f"Depthwise{kind}" if kind[:1].isupper() else f"depthwise_{kind}"


def efficiencies(jobs: Sequence[Job], core: Core) -> Floats:
    """Return the efficiency of every job on a core, shape (jobs,), more than 0 and at most 1.
    O(jobs)."""
    if not core.efficiency:
        return np.ones(len(jobs))
    return np.array(
        [core.efficiency.get(kind_of(job.kind, job.nests), 1.0) for job in jobs], dtype=np.float64
    )


def shapes_of(core: Core) -> tuple[Floats, Floats]:
    """Return rows and columns of each shape, arrays of shape (shapes,), fewest rows first."""
    if not core.flexible:
        return np.array([float(core.rows)]), np.array([float(core.columns)])
    return _factors(core.rows * core.columns)


@lru_cache(maxsize=32)
def _factors(elements: int) -> tuple[Floats, Floats]:
    small = np.arange(1, isqrt(elements) + 1)
    small = small[elements % small == 0]
    rows = np.unique(np.concatenate([small, elements // small]))
    return rows.astype(np.float64), (elements // rows).astype(np.float64)


WIDTHS = (8, 16, 32)
"""Widths of arithmetic that the model knows, in bits."""


@dataclass(frozen=True)
class NestTable:
    """Distinct loop nests, one row each, as float arrays of shape (rows,) (exact: every extent is
    far below 2^53).

    ``bits`` is the width of their arithmetic.
    ``row_of[j, i]`` is the row of nest ``i`` of job ``j``, -1 beyond its last. Nests share a row
    only if their jobs have operands of equal sizes outside the nests, because those take a part of
    the private buffer.
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
    bits: Floats
    input_bytes: Floats
    weight_bytes: Floats
    output_bytes: Floats
    row_of: Ints

    @property
    def positions(self) -> Floats:
        """Output positions of one group, over the whole batch, shape (rows,)."""
        return self.batch * self.y * self.x

    @property
    def taps(self) -> Floats:
        """Positions of the filter, shape (rows,)."""
        return self.r * self.s

    @property
    def macs(self) -> Floats:
        """Multiply-accumulates of all repeats, shape (rows,)."""
        return self.groups * self.positions * self.k * self.c * self.taps * self.repeats

    @property
    def element_bytes(self) -> Floats:
        """Bytes of one element of an operand, shape (rows,)."""
        return self.bits / 8

    @property
    def weights(self) -> Floats:
        """Elements of the weight operand, shape (rows,)."""
        return self.groups * self.k * self.c * self.taps

    @property
    def inputs(self) -> Floats:
        """Elements of the input that one repeat needs, padding included; positions that strides
        step over are left out."""
        rows = _extent(self.y, self.r, self.stride_y, self.dilation_y)
        columns = _extent(self.x, self.s, self.stride_x, self.dilation_x)
        return self.groups * self.batch * self.c * rows * columns

    @property
    def outputs(self) -> Floats:
        """Elements of the result of one repeat."""
        return self.groups * self.positions * self.k

    def per_job(self, per_nest: Floats) -> Floats:
        """Sum a figure of shape (rows,) or (rows, n) over the loop nests of each job: shape (jobs,)
        or (jobs, n)."""
        none = np.zeros((1, *per_nest.shape[1:]))
        return np.asarray(
            np.concatenate([per_nest, none])[self.row_of].sum(axis=1)
        )  # row -1: no nest


def _extent(out: Floats, taps: Floats, stride: Floats, dilation: Floats) -> Floats:
    """Input positions that ``out`` outputs need along one axis: all from first to last, or only the
    windows where these do not meet."""
    window = dilation * (taps - 1) + 1
    return np.minimum((out - 1) * stride + window, out * taps)


FIELDS = tuple(field.name for field in fields(NestTable) if field.name != "row_of")
"""Figures of a nest, in the order of its row."""


def nest_table(jobs: Sequence[Job]) -> NestTable:
    """Collect the nests of all jobs; equal ones share a row. Linear in the number of operands."""
    width = max((len(job.nests) for job in jobs), default=0)
    row_of = np.full((len(jobs), width), -1, dtype=np.int64)
    rows: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for index, job in enumerate(jobs):
        sizes = _operand_bytes(job)
        outside = tuple(operand.bytes for operand in (*job.reads, *job.writes) if operand.nest < 0)
        for position, nest in enumerate(job.nests):
            shape = (*nest.extents, *nest.stride, *nest.dilation)
            numbers = (*shape, width_of(job.bits), *sizes[position])
            row_of[index, position] = rows.setdefault(
                (numbers, (len(job.reads), *outside)), len(rows)
            )
    figures = np.array([numbers for numbers, _ in rows], dtype=np.float64)
    columns = figures.reshape(len(rows), len(FIELDS)).T
    return NestTable(**dict(zip(FIELDS, columns, strict=True)), row_of=row_of)


def width_of(bits: int) -> int:
    """Return the least width of :data:`WIDTHS`, in bits, that numbers fit into; wider numbers get
    the widest."""
    return next((width for width in WIDTHS if bits <= width), WIDTHS[-1])


def _operand_bytes(job: Job) -> list[list[int]]:
    """Input, weight and output bytes of each nest."""
    sizes = [[0, 0, 0] for _ in job.nests]
    slot = {Role.INPUT: 0, Role.WEIGHT: 1, Role.OUTPUT: 2}
    for operand in (*job.reads, *job.writes):
        if operand.nest >= 0:
            sizes[operand.nest][slot[operand.role]] += operand.bytes
    return sizes
