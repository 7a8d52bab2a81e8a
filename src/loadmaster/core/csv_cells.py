"""Reads CSV files with a header; every error names file, line and column."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadmaster.core.errors import JobError, LoadmasterError
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


def read_text(path: str | Path, error: type[LoadmasterError] = JobError) -> str:
    """Read a text file in UTF-8; raises ``error``."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise error(f"{path}: is not text in UTF-8: give another file") from None
    except (OSError, ValueError) as wrong:
        raise error(f"{path}: cannot be read: {why_unreadable(path, wrong)}") from None


def header_of(text: str) -> tuple[str, ...]:
    """Column names in lower case, from the first line that is not empty; () for an empty text."""
    first = next((line for line in text.splitlines() if line.strip(' \t,"')), "")
    return tuple(name.strip().strip('"').lower() for name in first.split(","))


def rows_of(
    text: str, source: str, needed: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[CsvRow]:
    """Yield the rows below the header of a table, of which there is at least one. Raises
    `JobError`, see :func:`table_of`."""
    *_, rows = table_of(text, source, needed, optional)
    if not rows:
        raise JobError(f"{source}: holds a header and no rows: add some")
    yield from rows


def table_of(
    text: str,
    source: str,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    error: type[LoadmasterError] = JobError,
    synonyms: Iterable[tuple[str, str]] = (),
) -> tuple[str, tuple[str, ...], list[CsvRow]]:
    """Return the place of the header, the names of its columns, and the rows below.

    Columns are found by name, or by one of its ``synonyms`` (synonym, name), in any order and case.
    Lines without any text are left out.

    Raises
    ------
    LoadmasterError
        ``error``, for a missing, unknown or repeated column, a row with more or fewer cells than
        the header, or no header.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines: list[tuple[str, list[str]]] = []
    begun = 1
    try:
        for line in reader:
            place, begun = f"{source}:{begun}", reader.line_num + 1
            cells = [cell.strip() for cell in line]
            if any(cells):
                lines.append((place, cells))
    except csv.Error as wrong:
        raise error(f"{source}:{begun}: is not CSV: {wrong}") from None
    if not lines:
        raise error(f"{source}:1: is empty: write a header with {','.join(needed)}")
    (top, titles), *below = lines
    known, named = {name.lower(): name for name in (*needed, *optional)}, dict(synonyms)
    header = tuple(known.get(named.get(cell.lower(), cell.lower()), "") for cell in titles)
    for position, (name, cell) in enumerate(zip(header, titles, strict=True), 1):
        if not name:
            raise error(
                f"{top}:{position}: column {cell[:_MOST_CHARACTERS]!r} is not known: use"
                f" {','.join(known.values())}"
            )
        if name in header[: position - 1]:
            raise error(f"{top}:{position}: column {name!r} is there twice: keep one")
    for name in needed:
        if name not in header:
            raise error(f"{top}: column {name!r} is missing: add it")
    for place, cells in below:
        if len(cells) != len(header):
            raise error(
                f"{place}: has {len(cells)} cells where the header has {len(header)}: add or"
                " drop some"
            )
    rows = [CsvRow(place, dict(zip(header, cells, strict=True))) for place, cells in below]
    return top, header, rows
