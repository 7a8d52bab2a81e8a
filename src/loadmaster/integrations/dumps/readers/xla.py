"""XLA: a file `*-buffer-assignment.txt` of `XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_text"`,
with `*-live-range.txt` beside it.

Every ``preallocated-temp`` allocation is an arena; the others are single parameters, results and
constants. Instants are the program's instructions, lifetimes are inclusive, and values alive at the
same time at one address are one storage (results that overwrite an operand, states of loops).
"""

from __future__ import annotations

import re
from pathlib import Path

from loadmaster.core.errors import AllocationError
from loadmaster.integrations.dumps.arena import DumpedArena, DumpedBuffer, arena_of
from loadmaster.integrations.dumps.text import numbered, read_text, whole

_ALLOCATION = re.compile(r"allocation (\d{1,20}): size (\d+)(.*)")
_VALUE = re.compile(r"\s+value: <\d+ (PHI )?(\S+)( \(phi\))? @\d+> \(size=(\d+), ?offset=(\d+)\)")
"""A value in the file; depending on the release, XLA marks phi values (passed on by a loop or a
conditional) before or after the name."""
_LIVE = re.compile(r"\s+(\S+\{[\d, ]*\}):(\d+)-(\d+)")
_ASSIGNMENT, _LIVE_RANGE = "-buffer-assignment.txt", "-live-range.txt"
_ALIGNMENT = 64
"""XLA's alignment in bytes on a CPU; that of accelerators is larger, see `--alignment`."""


def read(path: Path) -> list[DumpedArena]:
    """Read the arenas of one module.

    Raises
    ------
    AllocationError
        If one of the two files cannot be read or is malformed, or has no packed allocation; the
        message names file and line.
    """
    allocations = _allocations(path)
    lives = _live_ranges(path)
    arenas = []
    for title, stated, values in allocations:
        buffers = []
        for spot, name, size, offset, carried in values:
            if name not in lives:
                raise AllocationError(
                    f"{spot}: value {name!r} has no line in {_live_range_path(path).name}: give two"
                    " files of one module"
                )
            buffers.append(DumpedBuffer(name, *lives[name], size, offset, carried))
        arenas.append(arena_of(path, title, buffers, _ALIGNMENT, stated=stated, shared=True))
    return arenas


READER = read

Value = tuple[str, str, int, int, bool]
"""File and line of a value, name with index, size and offset in bytes, and whether it is a phi
value."""


def _allocations(path: Path) -> list[tuple[str, int, list[Value]]]:
    """Return name, stated bytes and values of each packed allocation."""
    found: list[tuple[str, int, list[Value]]] = []
    values: list[Value] | None = None
    seen = False
    for number, line in numbered(read_text(path)):
        spot = f"{path}:{number}"
        if head := _ALLOCATION.match(line):
            seen = True
            values = [] if "preallocated-temp" in head[3] else None
            if values is not None:
                found.append((f"allocation {head[1]}", whole(head[2], spot, "the size"), values))
        elif line.lstrip().startswith("value:") and seen:
            value = _VALUE.match(line)
            if value is None:
                raise AllocationError(
                    f"{spot}: is no whole line of a value: the file is cut off, or of another"
                    " version of XLA"
                )
            if values is not None:
                values.append(
                    (
                        spot,
                        _key(value[2]),
                        whole(value[4], spot, "the size"),
                        whole(value[5], spot, "the offset"),
                        bool(value[1] or value[3]),
                    )
                )
    if not seen:
        raise AllocationError(f"{path}:1: holds no allocation: give XLA's *{_ASSIGNMENT}")
    if not any(values for _, _, values in found):
        raise AllocationError(
            f"{path}: holds no values in preallocated-temp: XLA had nothing to pack"
        )
    return found


def _live_ranges(path: Path) -> dict[str, tuple[int, int]]:
    """Return the first and last instant of each value."""
    beside = _live_range_path(path)
    found: dict[str, tuple[int, int]] = {}
    inside = False
    for number, line in numbered(read_text(beside)):
        if line.strip() == "BufferLiveRange:":
            inside = True
        elif inside and line.startswith("    "):
            spot, live = f"{beside}:{number}", _LIVE.fullmatch(line)
            if live is None:
                raise AllocationError(
                    f"{spot}: is no line of a live range: the file is cut off, or of another"
                    " version of XLA"
                )
            found[_key(live[1])] = (
                whole(live[2], spot, "the first instant"),
                whole(live[3], spot, "the last instant"),
            )
        elif inside and line.strip():
            break
    if not inside:
        raise AllocationError(f"{beside}:1: holds no BufferLiveRange: give XLA's own file")
    return found


def _live_range_path(path: Path) -> Path:
    """Return the path of the live ranges beside a buffer assignment; raise AllocationError for
    another name."""
    if not path.name.endswith(_ASSIGNMENT):
        raise AllocationError(
            f"{path}: is not called *{_ASSIGNMENT}: give that file of XLA's, with *{_LIVE_RANGE}"
            " beside it"
        )
    return path.with_name(path.name.removesuffix(_ASSIGNMENT) + _LIVE_RANGE)


def _key(name: str) -> str:
    """Return a value's name and index in a form common to both files."""
    return name.replace(" ", "") if name.endswith("}") else f"{name}{{}}"
