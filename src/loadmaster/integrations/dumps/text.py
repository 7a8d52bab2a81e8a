"""Text of dumps, read with a limit, and the whole numbers in it, so that an error names file and
line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.errors import AllocationError

LARGEST = 2**30
"""Bytes of the largest dump that is read."""
_MOST_DIGITS = 40


def read_bytes(path: Path) -> bytes:
    """Contents of a dump. Raises `AllocationError` if it cannot be read, is empty or larger than 1
    GiB."""
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
    """Text of a dump; bytes that are no text are replaced. Raises as `read_bytes` does."""
    return read_bytes(path).decode("utf-8", "replace")


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from 1 on; only line feeds end a line, as other tools count."""
    return enumerate((line.rstrip("\r") for line in text.split("\n")), 1)


def whole(digits: str, spot: str, what: str) -> int:
    """The number that digits stand for, hexadecimal after ``0x``. Raises `AllocationError` from
    2^62 on, naming the ``spot``."""
    value = (
        int(digits, 0 if digits[:2].lower() == "0x" else 10)
        if len(digits) <= _MOST_DIGITS
        else WHOLE_LIMIT
    )
    if abs(value) >= WHOLE_LIMIT:
        raise AllocationError(
            f"{spot}: {what} is {digits[:_MOST_DIGITS]}, which is 2^62 or more: no memory is so"
            " large"
        )
    return value
