"""The CSV form of packing problems and solutions that MiniMalloc reads and writes.

Columns in any order: ``id``, ``lower``, ``upper`` (or ``end``: inclusive) and ``size``, optionally
``alignment``, ``offset`` (a pin; in a solution the answer), ``hint``, ``gaps`` such as ``2-8
20-30@0:64``, and ``alias``, the id of a buffer to which this one keeps its distance: it lies
``shift`` bytes above it, or at the same address. Where there are several memories also ``memory``
(a pin; in a solution the answer), ``prefers`` such as ``sram l2 dram:500`` (the best first, a cost
of its own after a colon) and ``accesses``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.allocation.problem import (
    FREE,
    NO_GAPS,
    AliasGroup,
    AllowedMemories,
    Parts,
    Preferences,
    Problem,
)
from loadmaster.allocation.rules import allowed_memories, check, from_columns, gaps_from
from loadmaster.core.arguments import validate_arguments
from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.csv_cells import CsvRow, read_text, table_of
from loadmaster.core.errors import AllocationError
from loadmaster.core.files import replace_file

_SYNONYMS = ("buffer", "id"), ("buffer_id", "id"), ("begin", "lower"), ("start", "lower")
_NEEDED = "id", "lower", "size"
_OPTIONAL = (
    *("upper", "end", "alignment", "offset", "hint", "gaps", "alias", "shift"),
    *("memory", "prefers", "accesses"),
)
_TEXT = ("id", "gaps", "alias", "memory", "prefers")
_DEFAULTS: dict[str, Any] = {
    "alignment": 1,
    "offset": FREE,
    "hint": FREE,
    "gaps": "",
    "alias": "",
    "shift": 0,
    "memory": "",
    "prefers": "",
    "accesses": 1,
}
"""Values of empty cells, and of all cells of columns that are not there."""
_FIELDS = {"offset": "pin", "id": "ids"}
"""Fields of a problem that the file calls otherwise."""
_CHOICE = re.compile(r"([^:]+)(?::(\d+))?")
_GAP = re.compile(r"(\d+)-(\d+)(?:@(\d+):(\d+))?")
_MOST_DIGITS = 40
"""Digits of the longest number that is converted; a longer one exceeds every limit."""
_WHOLE = re.compile(r"[+-]?\d+")


@validate_arguments(AllocationError)
def read_buffers(path: str | Path) -> Problem:
    """Read a problem.

    Raises
    ------
    AllocationError
        For a file that cannot be read or is malformed: the message starts with file, line and
        column.
    """
    return parse_buffers(read_text(path, AllocationError), str(path))


def read_solution(path: str | Path) -> tuple[Problem, Ints]:
    """Read buffers and the offsets that a solution gives them, which then bind nobody.

    Raises
    ------
    AllocationError
        As `read_buffers` does, and if there is no column of offsets.
    """
    table = _CsvTable(read_text(path, AllocationError), str(path))
    problem = table.problem()
    if "offset" not in table.header:
        raise AllocationError(
            f"{table.top}: column 'offset' is missing: give a solution, as `loadmaster"
            " allocate --out` writes it"
        )
    free = replace(problem, pin=np.full(len(problem), FREE, dtype=np.int64))
    check(free, table.where)
    return free, problem.pin


def read_bank_solution(path: str | Path) -> tuple[Problem, tuple[str, ...], Ints]:
    """Read buffers, and the memories and offsets that a solution gives them.

    Raises
    ------
    AllocationError
        As `read_solution` does, and if a buffer has no memory.
    """
    problem, offsets = read_solution(path)
    allowed = problem.allowed or AllowedMemories.anywhere(len(problem))
    for buffer, name in enumerate(allowed.memory):
        if name is None:
            raise AllocationError(
                f"{path}: buffer {problem.name(buffer)!r} has no memory: give a solution that was"
                " made with --memory"
            )
    free = allowed._replace(memory=(None,) * len(problem))
    return replace(problem, allowed=free), tuple(str(name) for name in allowed.memory), offsets


def parse_buffers(text: str, source: str = "buffers") -> Problem:
    """`read_buffers` for text at hand; ``source`` names it in errors. O(n)."""
    table = _CsvTable(text, source)
    problem = table.problem()
    check(problem, table.where)
    return problem


class _CsvTable:
    """A header and rows of cells, where they stand in the file, and the problem that they are."""

    def __init__(self, text: str, source: str) -> None:
        self.top, self.header, self.rows = table_of(
            text, source, _NEEDED, _OPTIONAL, AllocationError, _SYNONYMS
        )
        if ("upper" in self.header) == ("end" in self.header):
            raise AllocationError(
                f"{self.top}: give either 'upper' (exclusive) or 'end' (inclusive)"
            )
        self.columns = {name: [value] * len(self.rows) for name, value in _DEFAULTS.items()}
        for name in self.header:
            self.columns[name] = [
                row.cells[name] if name in _TEXT else _number(row, name) for row in self.rows
            ]

    def where(self, row: int, field: str) -> str:
        """Return the place of a cell for messages, with the name of its buffer."""
        name = "end" if field == "upper" and "end" in self.header else field
        return f"{self.rows[row].where(name)} of buffer {self.rows[row].cells['id']!r}"

    def problem(self) -> Problem:
        """Return the problem of the columns, with ``end`` turned into an exclusive bound."""
        columns, inclusive = self.columns, "end" in self.columns
        upper = np.asarray(columns.get("end", columns.get("upper")), dtype=np.int64)
        numbers: dict[str, Any] = {
            _FIELDS.get(name, name): cells for name, cells in columns.items()
        }
        numbers["upper"] = upper + inclusive
        gaps = self._gaps(int(inclusive))
        demands = {"aliases": self._aliases(), "allowed": self._allowed_memories()}
        return from_columns(numbers, gaps, demands)

    def _aliases(self) -> tuple[AliasGroup, ...]:
        """Return the groups of buffers that name each other; O(n)."""
        number = {name: row for row, name in enumerate(self.columns["id"])}
        group: dict[int, dict[int, int]] = {}
        for row, base in enumerate(self.columns["alias"]):
            if not base:
                if self.columns["shift"][row]:
                    raise AllocationError(
                        f"{self.where(row, 'shift')} is of no alias: name the buffer that it lies"
                        " above"
                    )
                continue
            if base not in number:
                raise AllocationError(
                    f"{self.where(row, 'alias')} is {base!r}, and there is no buffer of that id"
                )
            mine, theirs = (group.setdefault(buffer, {buffer: 0}) for buffer in (row, number[base]))
            up = theirs[number[base]] + self.columns["shift"][row] - mine[row]
            if mine is theirs and up:
                raise AllocationError(
                    f"{self.where(row, 'alias')} contradicts what other rows say of its distance"
                    f" to {base!r}: drop one"
                )
            if len(mine) > len(theirs):
                mine, theirs, up = theirs, mine, -up
            for member in mine if mine is not theirs else ():
                theirs[member] = mine[member] + up
                group[member] = theirs
        found = {id(members): members for members in group.values() if len(members) > 1}
        return tuple(tuple(sorted(members.items())) for members in found.values())

    def _allowed_memories(self) -> AllowedMemories | None:
        """Return the allowed memories in the columns; None without any."""
        memory = [cell or None for cell in self.columns["memory"]]
        prefers = [self._preferences(cell, row) for row, cell in enumerate(self.columns["prefers"])]
        return allowed_memories(memory, prefers, self.columns["accesses"], self.where)

    def _preferences(self, cell: str, row: int) -> Preferences:
        """Return the memories in a cell of ``prefers`` in order, each with its cost or None."""
        found: Preferences = ()
        for word in cell.split():
            match = _CHOICE.fullmatch(word)
            if match is None:
                raise AllocationError(
                    f"{self.where(row, 'prefers')} has {word[:80]!r}: write memories like sram"
                    " dram, or sram:0 dram:500"
                )
            found += ((match[1], None if match[2] is None else _whole(match[2])),)
        return found

    def _gaps(self, addend: int) -> Parts:
        """Return the gaps of all buffers. ``addend`` is 1 where ends are inclusive."""
        rows = []
        for owner, cell in enumerate(self.columns["gaps"]):
            for word in cell.split():
                match = _GAP.fullmatch(word)
                numbers = [_whole(digits or "0") for digits in match.groups()] if match else []
                if max(numbers, default=WHOLE_LIMIT) >= WHOLE_LIMIT:
                    raise AllocationError(
                        f"{self.where(owner, 'gaps')} has {word[:80]!r}: write gaps like 2-8 or"
                        " 20-30@0:64"
                    )
                lower, last, *window = numbers
                rows.append((owner, lower, last + addend, *window))
        return gaps_from(rows) if rows else NO_GAPS


def _number(row: CsvRow, name: str) -> int:
    """Return the whole number in a cell, the default if it is empty. Raise AllocationError for
    others and for 2^62 or more."""
    cell = row.cells[name] or str(_DEFAULTS.get(name, ""))
    if not _WHOLE.fullmatch(cell):
        wrong = f"{cell[:80]!r}: write a whole number"
    elif abs(_whole(cell)) >= WHOLE_LIMIT:
        wrong = f"{cell[:40]}, which is 2^62 or more: scale the problem down"
    else:
        return int(cell)
    raise AllocationError(f"{row.where(name)} is {wrong}")


def _whole(digits: str) -> int:
    """Return the value of digits; 2^62 for more digits than any valid number has, which Python
    would refuse to read."""
    return int(digits) if len(digits) <= _MOST_DIGITS else WHOLE_LIMIT


@validate_arguments(AllocationError)
def write_buffers(
    path: str | Path,
    problem: Problem,
    offsets: Ints | None = None,
    memory: Iterable[str] | None = None,
) -> Path:
    """Write a problem, with ``offsets`` and each buffer's ``memory`` as its solution if given; the
    file appears whole or not at all.

    Reserved ranges, in-place pairs and conflicts have no columns: give them again with the file.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    return replace_file(path, format_buffers(problem, offsets, memory), "the buffers")


def format_buffers(
    problem: Problem, offsets: Ints | None = None, memory: Iterable[str] | None = None
) -> str:
    """Text of a problem or, with ``offsets``, of its solution."""
    columns: dict[str, list[str]] = {"id": [problem.name(i) for i in range(len(problem))]}
    columns |= {name: _cells(getattr(problem, name)) for name in ("lower", "upper", "size")}
    if "alignment" in problem.features:
        columns["alignment"] = _cells(problem.alignment)
    if (problem.hint >= 0).any():
        columns["hint"] = _cells(problem.hint)
    if len(problem.gaps.owner):
        columns["gaps"] = _gap_cells(problem)
    if problem.aliases:
        columns |= _alias_columns(problem)
    if offsets is not None or "pins" in problem.features:
        columns["offset"] = _cells(problem.pin if offsets is None else offsets)
    columns |= _memory_columns(problem.allowed, memory)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(columns)
    rows.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _cells(column: Ints) -> list[str]:
    """Return the cells of a column of numbers; those below 0 stand for none."""
    return ["" if value < 0 else str(value) for value in column.tolist()]


def _alias_columns(problem: Problem) -> dict[str, list[str]]:
    """Return the alias columns: every member of a group but the lowest names the lowest."""
    alias, shifts = [""] * len(problem), [""] * len(problem)
    for group in problem.aliases:
        base, lowest = min(group, key=lambda member: member[1])
        for buffer, shift in group:
            if buffer != base:
                alias[buffer], shifts[buffer] = problem.name(base), str(shift - lowest)
    return {"alias": alias, "shift": shifts}


def _memory_columns(
    allowed: AllowedMemories | None, memory: Iterable[str] | None
) -> dict[str, list[str]]:
    """Return the columns ``memory``, ``prefers`` and ``accesses``, each only if a buffer needs
    it."""
    columns = {} if memory is None else {"memory": list(memory)}
    if allowed is None:
        return columns
    if memory is None and any(allowed.memory):
        columns["memory"] = [name or "" for name in allowed.memory]
    if any(allowed.prefers):
        words = (
            [name if cost is None else f"{name}:{cost}" for name, cost in row]
            for row in allowed.prefers
        )
        columns["prefers"] = [" ".join(row) for row in words]
    if any(value != 1 for value in allowed.accesses):
        columns["accesses"] = [str(value) for value in allowed.accesses]
    return columns


def _gap_cells(problem: Problem) -> list[str]:
    """Return the cell of gaps of every buffer."""
    cells: list[list[str]] = [[] for _ in range(len(problem))]
    for owner, lower, upper, low, high in zip(
        *(column.tolist() for column in problem.gaps), strict=True
    ):
        cells[owner].append(f"{lower}-{upper}" + (f"@{low}:{high}" if low < high else ""))
    return [" ".join(cell) for cell in cells]
