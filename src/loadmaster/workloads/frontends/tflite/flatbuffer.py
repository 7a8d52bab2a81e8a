"""Reads FlatBuffers, the encoding of ``.tflite`` files: tables, vectors and strings by position,
every access checked.

The encoding is described at https://flatbuffers.dev/internals. A table begins with the signed
distance to its vtable, which says at which distance from the table each field lies. Fields that are
tables, vectors or strings hold the unsigned distance to them. Distances point forward only, so that
a chain of them ends; what a damaged file can do is point outside, or point to one thing from many
places.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from loadmaster.core.errors import ModelError

_READINGS = 4
"""How often what a file holds may be read."""
_LONGEST_TEXT = 4096
"""Bytes of a name; longer ones are no names."""


class Flatbuffer:
    """The bytes of a file.

    All vectors together may have a few times as many elements as the file has bytes. Valid files
    have fewer, as every element has its own bytes; only a damaged file has more, by pointing to one
    vector from many places.
    """

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self._elements_left = _READINGS * len(data)

    @property
    def root(self) -> FlatTable:
        """The root table."""
        return FlatTable(self, self.follow(0))

    def number(self, at: int, code: str) -> int:
        """Return a little-endian number of ``struct``'s type ``code`` at a position."""
        try:
            value: int = struct.unpack_from(f"<{code}", self.data, at)[0]
        except struct.error:
            raise self.damaged(at) from None
        return value

    def follow(self, at: int) -> int:
        """Return the position to which the distance at a position points."""
        distance = self.number(at, "I")
        if not 4 <= distance <= len(self.data) - at:
            raise self.damaged(at)
        return at + distance

    def spend(self, count: int) -> None:
        """Count elements that are read one by one. Raises `ModelError` when there are more than a
        file of this size can hold."""
        self._elements_left -= count
        if self._elements_left < 0:
            raise ModelError(
                "points to the same bytes from too many places: it is damaged, export it again"
            )

    def damaged(self, at: int) -> ModelError:
        """Return the error for an invalid position."""
        return ModelError(
            f"is cut off or damaged at byte {at} of {len(self.data)}: convert or copy it again"
        )


class FlatTable:
    """A table at a position; its fields are read by their numbers in the schema."""

    __slots__ = ("_end", "_vtable", "file", "position")

    def __init__(self, file: Flatbuffer, position: int) -> None:
        self.file = file
        self.position = position
        self._vtable = position - file.number(position, "i")
        if self._vtable < 0:
            raise file.damaged(position)
        self._end = self._vtable + file.number(self._vtable, "H")
        if self._end > len(file.data):
            raise file.damaged(self._vtable)

    @property
    def fields(self) -> int:
        """Number of fields that the table may have."""
        return max(0, self._end - self._vtable - 4) // 2

    def at(self, field: int) -> int | None:
        """Return the position of a field; None if it is absent."""
        entry = self._vtable + 4 + 2 * field
        distance = self.file.number(entry, "H") if entry + 2 <= self._end else 0
        return self.position + distance if distance else None

    def number(self, field: int, code: str = "i", default: int = 0) -> int:
        """Return a whole number, ``default`` if it is absent."""
        at = self.at(field)
        return default if at is None else self.file.number(at, code)

    def table(self, field: int) -> FlatTable | None:
        """Return the table that a field points to; None if it is absent."""
        at = self.at(field)
        return None if at is None else FlatTable(self.file, self.file.follow(at))

    def tables(self, field: int) -> Iterator[FlatTable]:
        """Yield the tables of a vector."""
        start, count = self._vector(field, 4)
        self.file.spend(count)
        for at in range(start, start + 4 * count, 4):
            yield FlatTable(self.file, self.file.follow(at))

    def count(self, field: int) -> int:
        """Return the number of elements of a vector of tables."""
        return self._vector(field, 4)[1]

    def numbers(self, field: int, code: str = "i") -> tuple[int, ...]:
        """Return the numbers of a vector, of ``struct``'s type ``code``."""
        start, count = self._vector(field, struct.calcsize(code))
        self.file.spend(count)
        return struct.unpack_from(f"<{count}{code}", self.file.data, start)

    def content(self, field: int) -> tuple[int, int]:
        """Return position and length of a vector of bytes, which is not read; (0, 0) if it is
        absent."""
        return self._vector(field, 1)

    def text(self, field: int) -> str:
        """Return a string on one line, empty if it is absent."""
        start, length = self._vector(field, 1)
        self.file.spend(min(length, _LONGEST_TEXT))
        raw = self.file.data[start : start + min(length, _LONGEST_TEXT)]
        return " ".join(raw.decode("utf-8", "replace").split())

    def _vector(self, field: int, width: int) -> tuple[int, int]:
        """Return the position of the first element, and the number of elements, of a field's
        vector, whose elements have ``width`` bytes; zeros if it is absent."""
        if (at := self.at(field)) is None:
            return 0, 0
        begin = self.file.follow(at)
        count = self.file.number(begin, "I")
        if count * width > len(self.file.data) - begin - 4:
            raise self.file.damaged(begin)
        return begin + 4, count
