"""Job lists in the CSV of the M3E instances: one dependency-free layer a row, columns
``K,C,Y,X,R,S,type``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.csv_cells import CsvRow, read_text, rows_of
from loadmaster.core.errors import JobError
from loadmaster.workloads.graph import LoopNest, TensorKind
from loadmaster.workloads.job import (
    Job,
    NetworkInfo,
    Operand,
    OperatorInfo,
    Role,
    TensorInstance,
    Workload,
)

COLUMNS = ("K", "C", "Y", "X", "R", "S", "type")
_KINDS = ("FullyConnected", "Conv", "DepthwiseConv", "Gemm")
_EXTENT_LIMIT = 2**31
"""Extents of loops stay below this."""
_MOST_MACS = 2**53
"""Double precision counts the multiply-accumulates of a job exactly up to here."""


@validate_arguments(JobError)
def read_job_list(path: str | Path) -> Workload:
    """Read a list of jobs that depend on nothing.

    Column ``type`` is 0 for fully connected layers (``K`` out, ``C`` in), 1 for convolutions, 2 for
    depthwise ones (``K`` is ignored) and 3 for matrix products, whose columns ``K,C,Y`` hold M, N
    and K of an M x K by K x N product. ``Y`` and ``X`` are input sizes; strides are 1. An element
    is one byte.

    Parameters
    ----------
    path : str or Path
        The CSV file. Jobs are named after it and their row, from 0: ``conv.0/17``.

    Returns
    -------
    Workload
        One network with one job a row, each with an input, a weight and an output of its own.

    Raises
    ------
    JobError
        Naming file, line and column.
    """
    return job_list_of(
        rows_of(read_text(path), str(path), COLUMNS),
        Path(path).name.removesuffix(".csv"),
        str(path),
    )


def job_list_of(rows: Iterable[CsvRow], name: str, source: str) -> Workload:
    """Make the jobs of rows with the columns of a job list, as :func:`read_job_list` has it; the
    network is called ``name``."""
    jobs: list[Job] = []
    tensors: list[TensorInstance] = []
    operators: list[OperatorInfo] = []
    kinds = (TensorKind.INPUT, TensorKind.WEIGHT, TensorKind.ACTIVATION)
    for row in rows:
        own, (kind, nest, sizes) = f"{name}/{len(jobs)}", layer_of(row)
        operands = []
        for role, kind_of_tensor, size in zip(Role, kinds, sizes, strict=False):
            label, is_output = f"{own}/{role}", role is Role.OUTPUT
            producer = len(jobs) if is_output else -1
            made = (label, name, label, 0, size, str(kind_of_tensor), is_output, producer)
            tensors.append(TensorInstance(*made))
            operands.append(Operand(label, size, role, 0))
        *reads, write = operands
        jobs.append(Job(own, name, 0, kind, (own,), (nest,), 0, 8, tuple(reads), (write,), ()))
        operators.append(OperatorInfo(own, tuple(o.tensor for o in reads), (write.tensor,)))
    outputs = tuple(job.writes[0].tensor for job in jobs)
    macs = sum(job.macs for job in jobs)
    network = NetworkInfo(name, source, "int8", 1, 1, macs, tuple(operators), outputs)
    return Workload((network,), tuple(jobs), tuple(tensors))


def layer_of(row: CsvRow) -> tuple[str, LoopNest, tuple[int, int, int]]:
    """Return a row's kind, loop nest, and the elements of input, weight and output."""
    kind = row.whole("type", 0, len(_KINDS))
    k, c, y, x, r, s = (row.whole(column, 1, _EXTENT_LIMIT) for column in COLUMNS[:-1])
    for column, size in zip(("Y", "X", "R", "S"), (y, x, r, s), strict=True):
        if size != 1 and (kind == 0 or (kind == 3 and column != "Y")):
            raise JobError(
                f"{row.where(column)} is {size}: it must be 1 for a layer of type {kind}"
            )
    for window, extent, taps, size in (("R", "Y", r, y), ("S", "X", s, x)):
        if taps > size:
            raise JobError(
                f"{row.where(window)} is {taps}, more than {extent} = {size}: a filter must fit"
                " into its input"
            )
    if kind == 3:
        k, c, y = c, y, k
    depthwise = kind == 2
    groups, k, per_group = (c, 1, 1) if depthwise else (1, k, c)
    nest = LoopNest(k=k, c=per_group, y=y - r + 1, x=x - s + 1, r=r, s=s, groups=groups)
    if nest.macs >= _MOST_MACS:
        raise JobError(
            f"{row.place}: {nest.macs} multiply-accumulates are more than one job may have (2^53):"
            " split it"
        )
    return (
        _KINDS[kind],
        nest,
        (c * y * x, groups * k * per_group * r * s, groups * k * nest.y * nest.x),
    )
