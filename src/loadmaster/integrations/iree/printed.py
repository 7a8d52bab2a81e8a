"""Parses IREE's dumps before and after the pass ``iree-stream-layout-slices``: packing operations,
and the addresses that replaced them.

The text after the pass is the text before it with constants in place of the operations' results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

from loadmaster.integrations.iree.packs import CONSTANT, Pack, find_packs, function_of

_DUMP = re.compile(
    r"// -----// IR Dump (Before|After) .*iree-stream-layout-slices(?: \('([\w.]+)' operation(?::"
    r" @?\"?([^\")]+)\"?)?\))?"
)
_ANY_DUMP = "// -----// IR Dump "
_NAME = re.compile(r"%[\w$.#-]+")


class Function(NamedTuple):
    """Lines of one function in a dump, and the number of its first line in the file."""

    lines: Sequence[str]
    number: int


class Dump(NamedTuple):
    """One dump before or after the pass on a function of a kind and name: range of lines in the
    text, and the functions that are called so."""

    before: bool
    function: tuple[str, str]
    lines: range
    functions: list[Function]


class PlacedPack(NamedTuple):
    """A packing operation, with IREE's bytes of the resource and addresses of slices; None if the
    text has no dump after the pass."""

    pack: Pack
    total: int | None
    offsets: tuple[int, ...] | None


def placed_packs(dumps: Sequence[Dump], source: str) -> Iterator[PlacedPack]:
    """Yield the packing operations of all dumps before the pass, each once. Raises the errors of
    `find_packs`."""
    for dump, after in pairwise((*dumps, None)):
        if dump is None or not dump.before:
            continue
        is_pair = after and not after.before and after.function == dump.function
        results = after.functions if after and is_pair else []
        for function, result in zip_longest(dump.functions, results[: len(dump.functions)]):
            packs = find_packs(function.lines, source, function.number)
            placed = _addresses(function, packs, result) if packs and result else {}
            for pack in packs:
                total, *offsets = (
                    placed.get(f"{pack.result}#{n}") for n in range(len(pack.slices) + 1)
                )
                known = tuple(offset for offset in offsets if offset is not None)
                yield PlacedPack(pack, total, known if len(known) == len(offsets) else None)
            if packs and dump.function[0] == "util.initializer":
                break  # Those after it are printed again when it is their turn.


def find_dumps(lines: Sequence[str]) -> Iterator[Dump]:
    """Yield all dumps of the pass in a text. O(lines)."""
    starts = [number for number, line in enumerate(lines) if line.startswith(_ANY_DUMP)] + [
        len(lines)
    ]
    for start, stop in pairwise(starts):
        if head := _DUMP.match(lines[start]):
            inside = range(start + 1, stop)
            heads = (found for at in inside if (found := function_of(lines[at])))
            # Without a module, the first function is the only one.
            function = (head[2], head[3] or "") if head[2] else next(heads, ("", ""))
            functions = list(_functions(lines, inside, function))
            yield Dump(head[1] == "Before", function, inside, functions)


def _functions(
    lines: Sequence[str], inside: range, function: tuple[str, str]
) -> Iterator[Function]:
    """Return the functions of a kind and name in a dump of a module or of one function."""
    end = inside.start - 1
    for number in inside:
        line = lines[number]
        if number > end and function_of(line) == function:
            closing = line[: -len(line.lstrip())] + "}"
            behind = range(number + 1, inside.stop)
            end = next((at for at in behind if lines[at].rstrip() == closing), inside.stop)
            yield Function(lines[number:end], number + 1)


def _addresses(before: Function, packs: Sequence[Pack], after: Function) -> dict[str, int]:
    """Return the constants of the text after the pass by the names before it, among them the
    results of the operations; otherwise both texts are equal."""
    constants: dict[str, int] = {}
    skipped = {line for pack in packs for line in range(pack.begin, pack.end)}
    old = [line for number, line in enumerate(before.lines) if number not in skipped]
    found: dict[str, int] = {}
    at = 0
    for line in after.lines:
        if constant := CONSTANT.match(line):
            constants[constant[1]] = int(constant[2])
        if at < len(old) and _NAME.sub("\n", old[at]) == _NAME.sub("\n", line):
            for mine, theirs in zip(_NAME.findall(old[at]), _NAME.findall(line), strict=True):
                if theirs in constants:
                    found[mine] = constants[theirs]
            at += 1
        elif not constant:
            return {}
    return found if at == len(old) else {}
