"""Parses ``stream.resource.pack`` in the text of IREE's compiler: slices of one transient resource
with lifetimes and sizes.

The operation has a line for each slice, ``[first, last] = %bytes``, both inclusive. Its results are
the bytes of the resource, ``%r#0``, and the offsets of the slices, ``%r#1`` and so on. The compiler
replaces it by addresses in the pass ``iree-stream-layout-slices``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.errors import AllocationError

ALIGNMENT = 64
"""IREE's default alignment in bytes of sizes and offsets
(``--iree-stream-resource-min-offset-alignment``)."""

_FUNCTION = re.compile(
    r"\s*(util\.initializer|util\.func|func\.func)\b(?:[^@]*(@[\w.$-]+|@\"[^\"]*\"))?"
)
CONSTANT = re.compile(r"\s*(%[\w$.-]+) = arith\.constant (-?\d{1,20}) : index\s*$")
_OPERATION = "stream.resource.pack"
_BEGIN = re.compile(r"\s*(%[\w$.-]+):(\d{1,9}) = stream\.resource\.pack\b(.*)slices\(\{\s*$")
_SLICE = re.compile(r"\s*\[(\d{1,20}), (\d{1,20})\] = (%[\w$.-]+),?\s*$")
_END = re.compile(r"\s*\}\) : index\s*$")


class IreeSlice(NamedTuple):
    """A slice, alive from ``first`` to ``last``, both inclusive; ``size`` in bytes, which IREE
    rounds up to its alignment."""

    first: int
    last: int
    size: int


@dataclass(frozen=True)
class Pack:
    """One packing operation on lines [begin, end) of the text, with its function and the name of
    its results."""

    begin: int
    end: int
    function: str
    result: str
    slices: tuple[IreeSlice, ...]


def function_of(line: str) -> tuple[str, str] | None:
    """Return the kind and the name of the function that begins on a line; None on other lines."""
    head = _FUNCTION.match(line)
    return (head[1], (head[2] or "").strip('@"')) if head else None


def find_packs(lines: Sequence[str], source: str, first_line: int = 1) -> list[Pack]:
    """Return all packing operations in a text. Errors name ``source`` and the line, counted from
    ``first_line`` on. O(lines).

    Raises
    ------
    AllocationError
        If an operation is incomplete, begins at an offset, or has a size that is not constant.
    """
    found: list[Pack] = []
    slices: list[IreeSlice] = []
    constants: dict[str, int] = {}
    function, first, begin = "", 0, None
    for number, line in enumerate(lines):
        spot = f"{source}:{first_line + number}"
        if begin is not None:
            if match := _SLICE.match(line):
                slices.append(_slice(match, spot, function, constants))
                continue
            if not _END.match(line):
                break
            if len(slices) + 1 != int(begin[2]):
                raise AllocationError(
                    f"{source}:{first_line + first}: has {len(slices)} slices for {begin[2]}"
                    " results: the text is not whole"
                )
            found.append(Pack(first, number + 1, function, begin[1], tuple(slices)))
            begin = None
        elif head := function_of(line):
            function, constants = head[1] or "initializer", {}
        elif constant := CONSTANT.match(line):
            constants[constant[1]] = int(constant[2])
        elif _OPERATION in line and " = " in line:
            first, slices, begin = number, [], _BEGIN.match(line)
            if begin is None or "offset(" in begin[3]:
                raise AllocationError(
                    f"{spot}: is a {_OPERATION} of a form that is not known: give the output of"
                    " IREE 3.13"
                )
    if begin is not None:
        raise AllocationError(
            f"{source}:{first_line + first}: the {_OPERATION} that begins here has no end: the text"
            " is cut off"
        )
    return found


def _slice(match: re.Match[str], spot: str, function: str, constants: dict[str, int]) -> IreeSlice:
    """Return the slice that a line describes."""
    first, last = int(match[1]), int(match[2])
    if match[3] not in constants:
        raise AllocationError(
            f"{spot}: the size {match[3]} in {function} is not known when the program is compiled:"
            " only static shapes can be planned"
        )
    size = constants[match[3]]
    if last < first or size < 0 or max(last, size + ALIGNMENT) >= WHOLE_LIMIT:
        raise AllocationError(
            f"{spot}: a slice of {size} bytes from {first} to {last}: the text is damaged"
        )
    return IreeSlice(first, last, size)
