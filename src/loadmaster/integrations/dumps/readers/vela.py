"""Vela: output of `vela --verbose-allocation`, with a table for each memory.

Lifetimes are inclusive. Rows with the same lifetime and address are tensors of one live range.
Constants, which are not packed, are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from loadmaster.core.errors import AllocationError
from loadmaster.integrations.dumps.arena import DumpedArena, DumpedBuffer, arena_of
from loadmaster.integrations.dumps.text import numbered, read_text, whole

_TABLE = re.compile(r"Allocation, memory (.+?)(?:, usage mask: .*)?$")
_ROW = re.compile(
    r"\s*(\d+)\s*-\s*(\d+)\s*:\s*(0x[0-9a-fA-F]+)\s*-\s*(0x[0-9a-fA-F]+)\s*:\s*(\d+)\s*:\s*\d+\s*:\s*[^:]*:(.+)$"
)
_PEAK = re.compile(r"Allocation Peak Tensor Size:\s*(\d+) bytes")
_HEADING = "Start Time"
_ALIGNMENT = 16


def read(path: Path) -> list[DumpedArena]:
    """Read the tables.

    Raises
    ------
    AllocationError
        If the file cannot be read, has no table, or a malformed one; the message names file and
        line.
    """
    arenas: list[DumpedArena] = []
    memory: str | None = None
    rows: dict[tuple[int, int, int], DumpedBuffer] = {}
    for number, line in numbered(read_text(path)):
        spot = f"{path}:{number}"
        if table := _TABLE.match(line):
            if memory is not None:
                raise AllocationError(
                    f"{spot}: begins a table before the peak of {memory} is told: the output is not"
                    " whole"
                )
            memory, rows = table[1], {}
        elif memory is None:
            continue
        elif peak := _PEAK.match(line):
            stated = whole(peak[1], spot)
            arenas.append(arena_of(path, memory, list(rows.values()), _ALIGNMENT, stated=stated))
            memory = None
        elif line.strip() and not line.startswith(_HEADING):
            tensor = _placed_tensor(line, spot)
            key = (tensor.first, tensor.last, tensor.offset or 0)
            first = rows.setdefault(key, tensor)
            rows[key] = first._replace(size=max(first.size, tensor.size))
    if memory is not None:
        raise AllocationError(
            f"{path}:{number}: ends before the peak of {memory} is told: the output is not whole"
        )
    if not arenas:
        raise AllocationError(
            f"{path}:1: holds no table of an allocation: give what `vela --verbose-allocation` says"
        )
    return arenas


READER = read


def _placed_tensor(line: str, spot: str) -> DumpedBuffer:
    """Return the tensor of a row of Vela's output, with its lifetime and addresses."""
    row = _ROW.match(line)
    if row is None:
        raise AllocationError(
            f"{spot}: is no row of a tensor: the output is cut off, or of another version of Vela"
        )
    name = row[6].strip()
    first, last, low, high, size = (whole(text, spot) for text in row.groups()[:5])
    if high - low < size:
        raise AllocationError(
            f"{spot}: tensor {name!r} has {size} bytes, but its addresses only {high - low}"
        )
    return DumpedBuffer(name, first, last, high - low, low)
