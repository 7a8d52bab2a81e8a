"""Tables of kernel times as CSV: ``kernel,combination,seconds``; a combination names the tensors in
the slow memory, itself CSV with spaces for commas."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.csv_cells import read_text, rows_of
from loadmaster.core.errors import JobError, PlacementError
from loadmaster.cost.tables.measured_times_csv import AMOUNTS, COPY, KERNEL

_WORK = "macs", "elements", "bits"


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
