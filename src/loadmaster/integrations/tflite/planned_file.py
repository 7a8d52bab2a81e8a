"""Reads and writes the plan in a file: metadata named ``OfflineMemoryAllocation``, which TFLM looks
for, in new tables before the unchanged file.

The metadata are integers of 32 bits: a version and a subgraph, which TFLM ignores, the number of
tensors of all subgraphs, and for each tensor its address in the arena, or -1 if TFLM is to place
it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from loadmaster.core.errors import ModelError
from loadmaster.integrations.tflite.flatbuffer_writer import (
    Field,
    Number,
    Numbers,
    Table,
    kept,
    numbers,
    write_before,
)
from loadmaster.workloads.frontends.tflite.flatbuffer import FlatTable
from loadmaster.workloads.frontends.tflite.model import LARGEST_FILE, OperatorEntry, TfliteModel
from loadmaster.workloads.frontends.tflite.schema import IDENTIFIER

PLAN = "OfflineMemoryAllocation"
ONLINE = -1
"""Instead of an address: TFLM places the tensor."""
_BUFFERS, _METADATA = 4, 6
_LAST_KNOWN = 9


def with_plan(model: TfliteModel, offsets: Sequence[int]) -> bytes:
    """Return the file with a plan of the addresses of all tensors; it replaces an older plan.

    Raises
    ------
    ModelError
        If the file has parts that TFLM cannot read, or that are not known here.
    """
    root = model.root
    _require_known_parts(root)
    notes = [table for table in root.tables(_METADATA) if table.text(0) != PLAN]
    changed = plan_fields(offsets, list(root.tables(_BUFFERS)), notes)
    data = file_with(model, changed, root.file.data)
    if len(data) >= LARGEST_FILE:
        raise ModelError(
            "is so large that no plan fits into 2 GiB with it: convert it with smaller weights"
        )
    return data


def file_with(model: TfliteModel, changed: Table, old: bytes) -> bytes:
    """Return a file with the model's root but for the ``changed`` fields, before the bytes
    ``old``."""
    root = model.root
    same = kept(root, (field for field in range(1, 8) if field not in changed))
    return write_before(old, {**numbers(root, {0: "I"}), **changed, **same}, IDENTIFIER)


def copied_operator(
    operator: OperatorEntry,
    inputs: Sequence[int],
    outputs: Sequence[int],
    intermediates: Sequence[int] = (),
) -> dict[int, Field]:
    """Return a copy of an operator with its options and other operands."""
    table = operator.table
    fields = numbers(table, {0: "I", 3: "B", 6: "b", 11: "B"})
    for field, operands in ((1, inputs), (2, outputs), (8, intermediates)):
        if operands:
            fields[field] = Numbers("i", operands)
    return fields | kept(table, (4, 5, 7, 12))


def plan_fields(
    offsets: Sequence[int], buffers: Sequence[FlatTable], notes: Sequence[FlatTable] = ()
) -> Table:
    """Return the fields of a root that hold a plan, the given buffers and metadata."""
    return {
        _BUFFERS: [*buffers, {0: plan_bytes(offsets)}],
        _METADATA: [*notes, {0: PLAN, 1: Number("I", len(buffers))}],
    }


def plan_bytes(offsets: Sequence[int]) -> bytes:
    """Return the contents of the plan's metadata."""
    return struct.pack(f"<{3 + len(offsets)}i", 1, 0, len(offsets), *offsets)


def planned_offsets(model: TfliteModel) -> tuple[int, ...]:
    """Return a file's planned addresses for the tensors of all subgraphs, :data:`ONLINE` for those
    without one.

    Raises
    ------
    ModelError
        If the file's plan has another number of tensors, which TFLM refuses, or impossible
        addresses.
    """
    root = model.root
    count = sum(len(subgraph.tensors) for subgraph in model.subgraphs)
    found: tuple[int, ...] = (ONLINE,) * count
    buffers = list(root.tables(_BUFFERS))
    for note in root.tables(_METADATA):
        if note.text(0) == PLAN:
            number = note.number(1, "I")
            at, length = buffers[number].content(0) if number < len(buffers) else (0, 0)
            numbers = struct.unpack_from(f"<{length // 4}i", root.file.data, at)
            if numbers[2:3] != (count,) or len(numbers) < 3 + count:
                raise ModelError(
                    f"holds a plan ({PLAN}) that is not of its {count} tensors, and that TFLM"
                    " refuses: convert the model again, without it"
                )
            found = numbers[3 : 3 + count]
    if min(found, default=ONLINE) < ONLINE:
        raise ModelError(
            f"holds a plan ({PLAN}) with the address {min(found)}: convert it again, without it"
        )
    return found


def _require_known_parts(root: FlatTable) -> None:
    """Raise ModelError for weights outside of the file and for unknown fields."""
    outside = root.count(8) if root.at(8) else 0
    if outside or any(table.number(1, "Q") > 1 for table in root.tables(_BUFFERS)):
        raise ModelError(
            "has weights outside of the FlatBuffer, which TFLM cannot read: convert the model into"
            " one file below 2 GiB"
        )
    unknown = [field for field in range(_LAST_KNOWN + 1, root.fields) if root.at(field) is not None]
    if unknown:
        raise ModelError(
            f"has field {unknown[0]} in its root, which is newer than this program: convert the"
            " model with an older converter"
        )
