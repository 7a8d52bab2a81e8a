"""Verifies that pieces are those of the tensors that were given, with their bytes and their seconds; shares no code with who divides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from loadmaster.placement.pieces import Division
from loadmaster.placement.sequence import Kernel, Operand

Finding = tuple[str, str]
_ROUNDING = 1e-12
"""Share by which a piece's seconds may differ from what follows from its bytes."""


def broken_division_rules(division: Division | None) -> Iterator[Finding]:
    """Iterate over all violations of a division, as pairs of rule and message; none where nothing is divided. O(pieces of operands)."""
    if division is None:
        return
    whole, pieces = division.whole, division.sequence
    if not len(division.of) == len(division.begin) == len(pieces.tensors) or not set(division.of) <= set(range(len(whole.tensors))):
        yield "piece", "pieces and tensors do not match one another"
        return
    yield from _uncovered(division)
    alike = [(s.name, s.link, s.alignment, s.page, len(s.kernels)) for s in (whole, pieces)]
    if alike[0] != alike[1]:
        yield "piece", f"the sequence in pieces is not that of {whole.name!r}: its kernels, link, alignment or pages differ"
        return
    for given, kernel in zip(whole.kernels, pieces.kernels, strict=True):
        yield from _other_kernel(division, given, kernel)


def _uncovered(division: Division) -> Iterator[Finding]:
    """Tensors that their pieces do not cover once, or that are not cut at pages."""
    page = division.whole.page
    reached = [0] * len(division.whole.tensors)
    for t, begin, piece in zip(division.of, division.begin, division.sequence.tensors, strict=True):
        tensor = division.whole.tensors[t]
        if begin != reached[t] or piece.kind is not tensor.kind:
            yield (
                "piece",
                f"{piece.name!r} begins at byte {begin} of {tensor.name!r}, of which {reached[t]} come before it, or is of another kind",
            )
        if begin and (not page or begin % page):
            yield "piece", f"{piece.name!r} begins at byte {begin} of {tensor.name!r}: pages have {page} bytes"
        reached[t] += piece.bytes
    for tensor, bytes_ in zip(division.whole.tensors, reached, strict=True):
        if bytes_ != tensor.bytes:
            yield "piece", f"pieces of {tensor.name!r} have {bytes_} bytes in all, and it has {tensor.bytes}"


def _other_kernel(division: Division, given: Kernel, kernel: Kernel) -> Iterator[Finding]:
    """Where a kernel does not do with the pieces what it was given to do with the tensors."""
    if (given.name, given.kind, given.algorithms, given.measured) != (kernel.name, kernel.kind, kernel.algorithms, kernel.measured):
        yield "piece", f"kernel {given.name!r} is another one for pieces"
        return
    expected = {operand.tensor: operand for operand in given.operands}
    used = dict.fromkeys(expected, 0)
    for operand in kernel.operands:
        t, piece = division.of[operand.tensor], division.sequence.tensors[operand.tensor]
        if t not in expected:
            yield "piece", f"kernel {given.name!r} uses {piece.name!r}, and not the tensor that it is a piece of"
            continue
        used[t] += piece.bytes
        total = division.whole.tensors[t].bytes
        if not _is_share(operand, expected[t], Fraction(piece.bytes, total) if total else Fraction(1)):
            yield "piece", f"kernel {given.name!r} uses {piece.name!r} otherwise, or for other seconds, than its share of the tensor"
        if given.measured is not None and piece.bytes < total:
            yield "piece", f"kernel {given.name!r} was measured with all of {division.whole.tensors[t].name!r} in one memory"
    if any(bytes_ != division.whole.tensors[t].bytes for t, bytes_ in used.items()):
        yield "piece", f"kernel {given.name!r} does not use all pieces of its operands"


def _is_share(piece: Operand, whole: Operand, share: Fraction) -> bool:
    def near(seconds: float, all_seconds: float) -> bool:
        return seconds == all_seconds if math.isinf(all_seconds) else math.isclose(seconds, all_seconds * share, rel_tol=_ROUNDING)

    same = (piece.read, piece.write) == (whole.read, whole.write)
    return same and near(piece.fast_seconds, whole.fast_seconds) and near(piece.slow_seconds, whole.slow_seconds)
