"""Measured times as CSV, in one of three forms: kernels with their amounts of work, layer shapes,
or a network's operators. A kernel's combination names the tensors in the slow memory, itself CSV
with spaces for commas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.csv_cells import CsvRow, header_of, read_text, rows_of
from loadmaster.core.errors import JobError, PlacementError
from loadmaster.core.files import replace_file
from loadmaster.workloads.frontends.job_list import COLUMNS as SHAPE

KERNEL = ("kernel", "combination", "seconds")
"""Columns of the table that ``loadmaster place --cost`` takes."""
COPY = "copy between memories"
"""The kind of rows that are such copies, called as the fields of a target's ``copy`` table. No
kernel is of this kind; some are of the kind ``copy``."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """A kernel's work in one combination of places: multiply-accumulates of ``bits``, scalar
    operations, bytes by memory and direction."""

    kind: str
    macs: int
    elements: int
    bits: int
    fast_read: int
    fast_written: int
    slow_read: int
    slow_written: int


AMOUNTS = tuple(field.name for field in fields(Amounts))
_WORK = "macs", "elements", "bits"


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A kernel's seconds in one combination of places, given by the names of the tensors in the
    slow memory."""

    kernel: str
    combination: str
    seconds: float
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """Seconds of a layer by the shape in its row, or of an ``operator`` by name; ``operator`` and
    ``core`` are empty if not given."""

    operator: str
    row: CsvRow
    core: str
    seconds: float


def read_timed(path: str | Path) -> tuple[list[TimedKernel], list[TimedLayer]]:
    """Read measured times, of kernels or of layers, in the form that the header shows:

    - ``kernel,combination,seconds`` and the columns of :class:`Amounts`: kernels, as ``loadmaster
      profile --out`` writes them;
    - ``K,C,Y,X,R,S,type,seconds`` and optionally ``core``: layers by shape, as in a job list;
    - ``op,seconds`` and optionally ``core``: operators of a network by name.

    Raises
    ------
    JobError
        Naming file, line and column.
    """
    text, source = read_text(path), str(path)
    header = header_of(text)
    if "kernel" in header:
        return [_kernel(row) for row in rows_of(text, source, (*KERNEL, *AMOUNTS))], []
    if "k" in header:
        rows = rows_of(text, source, (*SHAPE, "seconds"), ("core",))
        return [], [_layer(row, "") for row in rows]
    if "op" in header:
        rows = rows_of(text, source, ("op", "seconds"), ("core",))
        return [], [_layer(row, row.text("op")) for row in rows]
    raise JobError(
        f"{path}:1: no measured times: write the columns {','.join(SHAPE)},seconds (layer shapes)"
        " or op,seconds (operators of a network), or give what loadmaster profile --out has"
        " written"
    )


def read_kernel_times(
    path: str | Path, work: Mapping[str, Sequence[int]] | None = None
) -> dict[str, dict[frozenset[str], float]]:
    """Read the seconds of every kernel by the set of tensors that are in the slow memory.

    ``loadmaster profile --out`` writes copies, which are left out, and the work of every kernel.
    Where both are given, that is the ``work`` of the kernel of the same name: multiply-accumulates,
    scalar operations and bits.

    Raises
    ------
    PlacementError
        The file cannot be read or is malformed, a combination is there twice, or a kernel has other
        work: the message begins with file and line.
    """
    table: dict[str, dict[frozenset[str], float]] = {}
    try:
        for row in rows_of(read_text(path), str(path), KERNEL, AMOUNTS):
            if row.cells.get("kind") == COPY:
                continue
            times = table.setdefault(row.text("kernel"), {})
            amounts = (work or {}).get(row.cells["kernel"], ())
            for column, amount in zip(_WORK, amounts, strict=False):
                if row.cells.get(column) and row.whole(column, 0, WHOLE_LIMIT) != amount:
                    raise JobError(
                        f"{row.where(column)} is {row.cells[column]}, and this kernel of the"
                        f" network has {amount}: profile it at this batch and these sizes"
                    )
            names = csv.reader([row.cells["combination"]], delimiter=" ")
            places = frozenset(filter(None, next(names)))
            if places in times:
                raise PlacementError(
                    f"{row.place}: kernel {row.cells['kernel']!r} has this combination twice:"
                    " keep one"
                )
            times[places] = row.number("seconds")
    except JobError as error:
        raise PlacementError(str(error)) from None
    return table


def write_timed(rows: Iterable[TimedKernel], path: Path) -> Path:
    """Write measured kernels; raises :class:`~loadmaster.core.errors.OutputError` if that fails."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow((*KERNEL, *AMOUNTS))
    table.writerows(
        (row.kernel, row.combination, repr(row.seconds), *astuple(row.amounts)) for row in rows
    )
    return replace_file(path, text.getvalue(), "the measured times")


def _kernel(row: CsvRow) -> TimedKernel:
    """Return the measured kernel of a row."""
    counts = (row.whole(name, 0, WHOLE_LIMIT) for name in AMOUNTS[1:])
    amounts = Amounts(row.text("kind"), *counts)
    return TimedKernel(
        row.text("kernel"), row.cells["combination"], row.number("seconds", positive=True), amounts
    )


def _layer(row: CsvRow, operator: str) -> TimedLayer:
    """Return the measured layer of a row."""
    seconds = row.number("seconds", positive=True)
    return TimedLayer(operator, row, row.cells.get("core", ""), seconds)
