"""IREE: what `iree-compile` prints with `--mlir-print-ir-before=iree-stream-layout-slices` and `--mlir-print-ir-after=` the same.

Give `--mlir-print-ir-module-scope --mlir-disable-threading --compile-to=stream` as well. Every ``stream.resource.pack`` is an arena;
lifetimes are inclusive and sizes are rounded up to 64. Addresses are taken from the text after the pass, in which constants stand where the
text before it has the operation's results; without that text IREE's own take is not known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from loadmaster.core.errors import AllocationError
from loadmaster.integrations.dumps.arena import Arena, Placed, arena_of
from loadmaster.integrations.dumps.text import read_text
from loadmaster.integrations.iree.packs import ALIGNMENT, CONSTANT, FUNCTION, Pack, find_packs

_DUMP = re.compile(r"// -----// IR Dump (Before|After) .*iree-stream-layout-slices(?: \('([\w.]+)' operation(?:: @?\"?([^\")]+)\"?)?\))?")
_ANY_DUMP = "// -----// IR Dump "
_NAME = re.compile(r"%[\w$.#-]+")


class _Function(NamedTuple):
    """Lines of one function in a dump, and the number of the first in the file."""

    lines: Sequence[str]
    number: int


class _Dump(NamedTuple):
    """Text of one dump: ``before`` the pass or after it, on a function."""

    before: bool
    kind: str
    name: str
    functions: list[_Function]


def read(path: Path) -> list[Arena]:
    """Read all arenas.

    Raises
    ------
    AllocationError
        If the file cannot be read, holds no packing, a malformed one, or one with sizes that are not static; the message names file and
        line.
    """
    dumps = list(_dumps(read_text(path).split("\n")))
    if not dumps:
        raise AllocationError(f"{path}:1: holds no dump of iree-stream-layout-slices: see what to give to iree-compile")
    arenas: list[Arena] = []
    names: Counter[str] = Counter()
    for number, dump in enumerate(dumps):
        if not dump.before:
            continue
        after = next((each for each in dumps[number + 1 : number + 2] if not each.before and each[1:3] == dump[1:3]), None)
        for index, function in enumerate(dump.functions):
            packs = find_packs(function.lines, str(path), function.number)
            placed = _addresses(function, packs, after.functions[index]) if packs and after and index < len(after.functions) else {}
            for pack in packs:
                names[pack.function] += 1
                title = pack.function + (f" #{names[pack.function]}" if names[pack.function] > 1 else "")
                arenas.append(_arena(path, title, pack, placed))
            if packs and dump.kind == "util.initializer":
                break  # Those after it are dumped again when it is their turn.
    if not arenas:
        raise AllocationError(f"{path}: holds no stream.resource.pack: IREE had nothing to pack")
    return arenas


READER = read


def _arena(path: Path, title: str, pack: Pack, placed: dict[str, int]) -> Arena:
    offsets = [placed.get(f"{pack.result}#{number}") for number in range(1, len(pack.slices) + 1)]
    buffers = [
        Placed(f"slice {number}", each.first, each.last, each.size, offset)
        for number, (each, offset) in enumerate(zip(pack.slices, offsets, strict=True), 1)
    ]
    return arena_of(path, title, buffers, ALIGNMENT, stated=placed.get(f"{pack.result}#0"))


def _dumps(lines: Sequence[str]) -> Iterator[_Dump]:
    starts = [number for number, line in enumerate(lines) if line.startswith(_ANY_DUMP)] + [len(lines)]
    for start, stop in pairwise(starts):
        if head := _DUMP.match(lines[start]):
            kind, name = (head[2], head[3] or "") if head[2] else _first(lines[start + 1 : stop])
            yield _Dump(head[1] == "Before", kind, name, list(_functions(lines, start + 1, stop, kind, name)))


def _first(lines: Sequence[str]) -> tuple[str, str]:
    """Kind and name of the first function, which is the only one where no module is printed."""
    head = next((match for line in lines if (match := FUNCTION.match(line))), None)
    return (head[1], (head[2] or "").strip('@"')) if head else ("", "")


def _functions(lines: Sequence[str], start: int, stop: int, kind: str, name: str) -> Iterator[_Function]:
    """Functions of a kind and name in the dump: of the whole module, or of one function."""
    number = start
    while number < stop:
        head = FUNCTION.match(lines[number])
        if head and head[1] == kind and (head[2] or "").strip('@"') == name:
            closing = lines[number][: len(lines[number]) - len(lines[number].lstrip())] + "}"
            end = next((at for at in range(number + 1, stop) if lines[at].rstrip() == closing), stop)
            yield _Function(lines[number:end], number + 1)
            number = end
        number += 1


def _addresses(before: _Function, packs: Sequence[Pack], after: _Function) -> dict[str, int]:
    """What each result of the operations became: both texts are alike but for the operations, in whose place there are constants."""
    constants: dict[str, int] = {}
    skipped = {line for pack in packs for line in range(pack.begin, pack.end)}
    old = [line for number, line in enumerate(before.lines) if number not in skipped]
    results = {f"{pack.result}#{number}" for pack in packs for number in range(len(pack.slices) + 1)}
    found: dict[str, int] = {}
    at = 0
    for line in after.lines:
        if constant := CONSTANT.match(line):
            constants[constant[1]] = int(constant[2])
        if at < len(old) and _NAME.sub("%", old[at]) == _NAME.sub("%", line):
            for mine, theirs in zip(_NAME.findall(old[at]), _NAME.findall(line), strict=True):
                if mine in results and theirs in constants:
                    found[mine] = constants[theirs]
            at += 1
        elif not constant:
            return {}
    return found if at == len(old) else {}
