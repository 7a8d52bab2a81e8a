"""Writes FlatBuffers: new tables before an unchanged old file, into which they may point.

A table is given as a mapping of its fields by number. A field is a number, a vector of numbers, a
string, bytes, a table, or a list of tables. Offsets in a FlatBuffer point forward, so new tables
precede the old bytes, and parents their children. The old bytes move by a multiple of
:data:`ALIGNMENT`, which keeps all alignments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadmaster.workloads.frontends.tflite.flatbuffer import FlatTable

ALIGNMENT = 64
"""Bytes; old bytes move by a multiple. It is a cache line, and four times the alignment of weights
in TensorFlow Lite."""
_CONTENT_ALIGNMENT = 16
_WIDTH_LIMIT = 8


@dataclass(frozen=True, slots=True)
class Number:
    """A field with a number of ``struct``'s type ``code``."""

    code: str
    value: int | float


@dataclass(frozen=True, slots=True)
class Numbers:
    """A vector of numbers."""

    code: str
    values: Sequence[int | float]


@dataclass(frozen=True, slots=True)
class Existing:
    """A table, vector or string at a position of the old file. Its tables can also be given as they
    were read."""

    position: int


Part = Numbers | str | bytes | Sequence["Table | FlatTable"] | Mapping[int, "Field"]
Field = Number | Existing | FlatTable | Part
Table = Mapping[int, Field]


def kept(table: FlatTable, fields: Iterable[int]) -> dict[int, Field]:
    """Return fields for a new table that point to the old table's values of these fields."""
    found = ((field, table.at(field)) for field in fields)
    return {field: Existing(table.file.follow(at)) for field, at in found if at is not None}


def numbers(table: FlatTable, codes: Mapping[int, str]) -> dict[int, Field]:
    """Return fields for a new table with the old table's numbers of the types ``codes``."""
    return {
        field: Number(code, table.number(field, code))
        for field, code in codes.items()
        if table.at(field) is not None
    }


def write_before(old: bytes, root: Table, identifier: bytes) -> bytes:
    """Return the file with a new root: all new parts, then the bytes ``old``."""
    writer = _FlatBufferWriter(identifier)
    writer.point(0, writer.write(root))
    writer.pad(ALIGNMENT)
    start = len(writer.data)
    for at, position in writer.outward:
        writer.point(at, start + position)
    return bytes(writer.data) + old


class _FlatBufferWriter:
    """Writes the parts of a FlatBuffer one after another."""

    def __init__(self, identifier: bytes) -> None:
        self.data = bytearray(4) + identifier
        self.outward: list[tuple[int, int]] = []

    def pad(self, alignment: int, ahead: int = 0) -> None:
        """Add zeros until the position ``ahead`` bytes after the end is aligned."""
        self.data += bytes(-(len(self.data) + ahead) % alignment)

    def point(self, at: int, target: int) -> None:
        """Write, at position ``at``, the offset to ``target``."""
        struct.pack_into("<I", self.data, at, target - at)

    def write(self, part: Part) -> int:
        """Write a part and all parts in it, and return its position."""
        if isinstance(part, Mapping):
            return self._table(part)
        children: Sequence[Table | FlatTable] = ()
        alignment = 1
        if isinstance(part, str):
            content = part.encode() + b"\0"
            count = len(content) - 1
        elif isinstance(part, bytes):
            content, count, alignment = part, len(part), _CONTENT_ALIGNMENT
        elif isinstance(part, Numbers):
            content = struct.pack(f"<{len(part.values)}{part.code}", *part.values)
            count, alignment = len(part.values), struct.calcsize(part.code)
        else:
            children, content, count = part, bytes(4 * len(part)), len(part)
        # The count is followed by the items, whose first byte is aligned.
        self.pad(max(4, alignment), ahead=4)
        position = len(self.data)
        self.data += struct.pack("<I", count) + content
        for index, child in enumerate(children):
            self._refer(position + 4 + 4 * index, child)
        return position

    def _table(self, table: Table) -> int:
        """Write a vtable, then the table: the offset between them, then fields, widest first."""
        widths = {
            field: struct.calcsize(item.code) if isinstance(item, Number) else 4
            for field, item in table.items()
        }
        count = max(table, default=-1) + 1
        self.pad(_WIDTH_LIMIT, ahead=4 + 2 * count)
        vtable, position = len(self.data), len(self.data) + 4 + 2 * count
        # The offset takes four bytes and padding, so that the widest fields are aligned to eight.
        at, places = 8 if _WIDTH_LIMIT in widths.values() else 4, {}
        for field in sorted(widths, key=lambda field: (-widths[field], field)):
            places[field] = at
            at += widths[field]
        self.data += struct.pack(
            f"<HH{count}H", 4 + 2 * count, at, *(places.get(field, 0) for field in range(count))
        )
        self.data += struct.pack("<i", position - vtable) + bytes(at - 4)
        for field, item in table.items():
            if isinstance(item, Number):
                struct.pack_into(f"<{item.code}", self.data, position + places[field], item.value)
            else:
                self._refer(position + places[field], item)
        return position

    def _refer(self, at: int, item: Existing | FlatTable | Part) -> None:
        """Point from position ``at`` to an item, which is written now if it is new."""
        if isinstance(item, Existing | FlatTable):
            self.outward.append((at, item.position))
        else:
            self.point(at, self.write(item))
