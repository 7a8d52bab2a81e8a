"""IREE: output of `iree-compile` with `--mlir-print-ir-before=iree-stream-layout-slices` and
`--mlir-print-ir-after=` the same.

Give `--mlir-print-ir-module-scope --mlir-disable-threading --compile-to=stream` as well. Every
``stream.resource.pack`` is an arena; lifetimes are inclusive and sizes are rounded up to 64, or to
less where IREE's addresses are multiples of less. Addresses are the constants in the text after the
pass that replace the operation's results; without that text IREE's own packing is unknown.
"""

from __future__ import annotations

from math import gcd
from pathlib import Path

from loadmaster.core.errors import AllocationError
from loadmaster.integrations.dumps.arena import DumpedArena, DumpedBuffer, arena_of
from loadmaster.integrations.dumps.text import read_text
from loadmaster.integrations.iree.packs import ALIGNMENT
from loadmaster.integrations.iree.printed import find_dumps, placed_packs


def read(path: Path) -> list[DumpedArena]:
    """Read all arenas.

    Raises
    ------
    AllocationError
        If the file cannot be read, has no packing operation, or one that is malformed or has sizes
        that are not static; the message names file and line.
    """
    dumps = list(find_dumps(read_text(path).split("\n")))
    if not dumps:
        raise AllocationError(
            f"{path}:1: holds no dump of iree-stream-layout-slices: see what to give to"
            " iree-compile"
        )
    arenas = []
    for pack, total, placed in placed_packs(dumps, str(path)):
        offsets = placed or [None] * len(pack.slices)
        alignment = gcd(ALIGNMENT, total or 0, *(placed or ()))
        buffers = [
            DumpedBuffer(f"slice {number}", first, last, -(-size // alignment) * alignment, offset)
            for number, ((first, last, size), offset) in enumerate(
                zip(pack.slices, offsets, strict=True), 1
            )
        ]
        arenas.append(arena_of(path, pack.function, buffers, alignment, stated=total))
    if not arenas:
        raise AllocationError(f"{path}: holds no stream.resource.pack: IREE had nothing to pack")
    return arenas


READER = read
