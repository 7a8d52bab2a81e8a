"""Reads CSV files with a header; every error names file, line and column."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadmaster.core.errors import JobError
from loadmaster.core.files import why_unreadable

_WHOLE = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MOST_CHARACTERS = 30
"""Characters of a cell that an error quotes, and digits of the longest number that is converted."""


@dataclass(frozen=True)
class CsvRow:
    """One row: ``place`` names file and line, ``cells`` has the texts by column, in the order of
    the header."""

    place: str
    cells: dict[str, str]

    def where(self, column: str) -> str:
        """Name a cell for an error: file, line, column number and column name."""
        return f"{self.place}:{list(self.cells).index(column) + 1}: {column}"

    def text(self, column: str) -> str:
        """Return the text of a cell that must not be empty."""
        if not self.cells[column]:
            raise JobError(f"{self.where(column)} is empty: write a name")
        return self.cells[column]

    def whole(self, column: str, least: int, below: int) -> int:
        """Return a whole number in [``least``, ``below``)."""
        cell = self.cells[column]
        if not _WHOLE.fullmatch(cell):
            raise JobError(
                f"{self.where(column)} is {cell[:_MOST_CHARACTERS]!r}: write a whole number of at"
                f" least {least}"
            )
        value = int(cell) if len(cell.lstrip("0")) <= _MOST_CHARACTERS else below
        if not least <= value < below:
            raise JobError(
                f"{self.where(column)} is {cell[:_MOST_CHARACTERS]}: it must be at least {least}"
                f" and less than {below}"
            )
        return value

    def number(self, column: str, *, positive: bool = False) -> float:
        """Return a number of at least 0 or, if ``positive``, of at least 1e-30; at most 1e30."""
        # Sums and ratios of such numbers are finite.
        cell, least = self.cells[column], 1e-30 if positive else 0.0
        value = float(cell) if _NUMBER.fullmatch(cell) else math.nan
        if not least <= value <= 1e30:
            raise JobError(
                f"{self.where(column)} is {cell[:_MOST_CHARACTERS]!r}: write a number from"
                f" {least:g} to 1e30"
            )
        return value


def read_text(path: str | Path) -> str:
    """Read a text file in UTF-8; raises :class:`~loadmaster.core.errors.JobError`."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise JobError(f"{path}: is not text in UTF-8: give a CSV file") from None
        raise JobError(f"{path}: cannot be read: {why_unreadable(path, error)}") from None


def header_of(text: str) -> tuple[str, ...]:
    """Column names in lower case, from the first line that is not empty; () for an empty text."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return tuple(name.strip().strip('"').lower() for name in first.split(","))


def rows_of(
    text: str, source: str, needed: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[CsvRow]:
    """Yield the rows below the header; columns are found by name, in any order and case.

    Raises
    ------
    JobError
        For a missing, unknown or repeated column, a row with more or fewer cells than the header,
        or no row at all.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: tuple[str, ...] = ()
    found = False
    try:
        for cells in reader:
            place = f"{source}:{reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = _header(cells, place, needed, optional)
                continue
            if len(cells) != len(header):
                raise JobError(
                    f"{place}: has {len(cells)} cells where the header has {len(header)}: add or"
                    " drop some"
                )
            found = True
            yield CsvRow(place, dict(zip(header, (cell.strip() for cell in cells), strict=True)))
    except csv.Error as error:
        raise JobError(f"{source}:{reader.line_num}: is not CSV: {error}") from None
    if not header:
        raise JobError(f"{source}:1: is empty: write a header such as {','.join(needed)}")
    if not found:
        raise JobError(f"{source}: holds a header and no rows: add some")


def _header(
    cells: Sequence[str], place: str, needed: Sequence[str], optional: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of a header's columns; raise JobError if one is unknown, missing or there
    twice."""
    names = [cell.strip().lower() for cell in cells]
    known = {name.lower(): name for name in (*needed, *optional)}
    for position, name in enumerate(names):
        if name not in known:
            raise JobError(
                f"{place}:{position + 1}: column {name[:_MOST_CHARACTERS]!r} is not known: use"
                f" {','.join(known.values())}"
            )
        if name in names[:position]:
            raise JobError(f"{place}:{position + 1}: column {name!r} is there twice: keep one")
    for name in needed:
        if name.lower() not in names:
            raise JobError(f"{place}: column {name!r} is missing: add it")
    return tuple(known[name] for name in names)
