"""Tables of kernel times as CSV: ``kernel,combination,seconds``; a combination names the tensors in
the slow memory, itself CSV with spaces for commas."""

from __future__ import annotations

import csv
from pathlib import Path

from loadmaster.core.csv_cells import read_text, rows_of
from loadmaster.core.errors import JobError, PlacementError
from loadmaster.cost.tables.measured_times_csv import AMOUNTS, COPY, KERNEL


def read_kernel_times(path: str | Path) -> dict[str, dict[frozenset[str], float]]:
    """Read the seconds of every kernel by the set of tensors that are in the slow memory.

    The amounts of work that ``loadmaster profile --out`` writes beside them may be there, and
    copies; neither is used here.

    Raises
    ------
    PlacementError
        The file cannot be read or is malformed, or a combination is there twice: the message begins
        with file and line.
    """
    table: dict[str, dict[frozenset[str], float]] = {}
    try:
        for row in rows_of(read_text(path), str(path), KERNEL, AMOUNTS):
            if row.cells.get("kind") == COPY:
                continue
            times = table.setdefault(row.text("kernel"), {})
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
