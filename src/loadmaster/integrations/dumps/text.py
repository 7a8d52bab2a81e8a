"""Reads texts of dumps up to a limit of size, and integers in them; errors name file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadmaster.core.arguments import as_whole
from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.errors import AllocationError

LARGEST = 2**30
"""Most bytes of a dump."""
_MOST_DIGITS = 40


def read_bytes(path: Path) -> bytes:
    """Return the contents of a dump. Raises `AllocationError` if it cannot be read, is empty, or is
    larger than 1 GiB."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise AllocationError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}): give a"
            " planner's dump"
        ) from None
    if not data:
        raise AllocationError(f"{path}: is empty: give a planner's dump")
    if len(data) > LARGEST:
        raise AllocationError(
            f"{path}: is larger than 1 GiB: dump one module, and leave large constants out"
        )
    return data


def read_text(path: Path) -> str:
    """Return the text of a dump without a byte order mark; bytes that are not UTF-8 are replaced.
    Raises the errors of `read_bytes`."""
    return read_bytes(path).decode("utf-8-sig", "replace")


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers from 1 on. Only line feeds end a line, as in other tools."""
    return enumerate((line.rstrip("\r") for line in text.split("\n")), 1)


def whole(digits: str, spot: str) -> int:
    """Return the integer of a text of digits, hexadecimal after ``0x``. Raises `AllocationError`
    with the ``spot`` for integers from 2^62 on."""
    value = (
        int(digits, 0 if digits[:2].lower() == "0x" else 10)
        if len(digits) <= _MOST_DIGITS
        else WHOLE_LIMIT
    )
    if abs(value) >= WHOLE_LIMIT:
        raise AllocationError(
            f"{spot}: has the number {digits[:_MOST_DIGITS]}, which is 2^62 or more: too large"
        )
    return value


def number_in(record: Mapping[str, Any], key: str, spot: str, least: int = 0) -> int:
    """Return a whole number of a record of a dump, which may be written as text. Raises
    `AllocationError` with the ``spot`` for anything else, and for numbers below ``least``."""
    value = record.get(key)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        value = int(value)
    number = as_whole(value)
    if number is None or not least <= number < WHOLE_LIMIT:
        raise AllocationError(f"{spot}: {key} is {str(value)[:40]}: the dump is damaged")
    return number
