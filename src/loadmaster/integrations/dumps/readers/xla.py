"""XLA: a file `*-buffer-assignment.txt` of `XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_text"`,
with `*-live-range.txt` beside it.

Every ``preallocated-temp`` allocation is an arena; the others are single parameters, results and
constants. Instants are the program's instructions, lifetimes are inclusive, and values alive at the
same time at one address are one storage (results that overwrite an operand, states of loops).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    text, lives = read_text(path), _live_ranges(path)
    found: list[tuple[str, int, list[DumpedBuffer]]] = []
    packed = seen = False
    for number, line in numbered(text):
        spot = f"{path}:{number}"
        if head := _ALLOCATION.match(line):
            seen, packed = True, "preallocated-temp" in head[3]
            if packed:
                found.append((f"allocation {head[1]}", whole(head[2], spot), []))
        elif line.lstrip().startswith("value:") and seen:
            value = _VALUE.match(line)
            if value is None:
                raise AllocationError(
                    f"{spot}: is no whole line of a value: the file is cut off, or of another"
                    " version of XLA"
                )
            if packed:
                found[-1][2].append(_buffer(value, lives, spot, path))
    if not seen:
        raise AllocationError(f"{path}:1: holds no allocation: give XLA's *{_ASSIGNMENT}")
    if not any(buffers for *_, buffers in found):
        raise AllocationError(
            f"{path}: holds no values in preallocated-temp: XLA had nothing to pack"
        )
    return [
        arena_of(path, title, buffers, _ALIGNMENT, stated=stated, shared=True)
        for title, stated, buffers in found
    ]


READER = read


def _buffer(
    value: re.Match[str], lives: Mapping[str, tuple[int, int]], spot: str, path: Path
) -> DumpedBuffer:
    """Return the buffer of a value's line, alive as the file beside ``path`` says."""
    name = _key(value[2])
    if name not in lives:
        raise AllocationError(
            f"{spot}: value {name!r} has no line in {_live_range_path(path).name}: give two files"
            " of one module"
        )
    size, offset = whole(value[4], spot), whole(value[5], spot)
    return DumpedBuffer(name, *lives[name], size, offset, bool(value[1] or value[3]))


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
                whole(live[2], spot),
                whole(live[3], spot),
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
