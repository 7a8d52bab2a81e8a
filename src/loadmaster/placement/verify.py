"""Verifies a tensor placement by a naive walk over the kernels that shares no code with the
engines.

At every position it knows which copies of each tensor are valid. O(operands + moves), and O(stays
log stays) for addresses.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from loadmaster.allocation.problem import FREE, Problem
from loadmaster.allocation.verify import broken_rules
from loadmaster.core.errors import Violation, first_violations
from loadmaster.placement.decisions import DividedSequence, Mode, Move, Stay, TensorPlacement
from loadmaster.placement.sequence import (
    ROUNDING,
    Kernel,
    KernelOperand,
    KernelSequence,
    StoredKind,
)

if TYPE_CHECKING:
    from loadmaster.placement.answer import MemoryPlan

Finding = tuple[str, str]
_Item = TypeVar("_Item", Stay, Move)


def verify_placement(plan: MemoryPlan) -> tuple[Violation, ...]:
    """Check that a tensor placement holds: pieces, operands, copies, the limit at every kernel,
    addresses; at most 20 violations."""
    placed = broken_placement_rules(
        plan.sequence, plan.placement, plan.limit, plan.mode, plan.offsets
    )
    return first_violations(itertools.chain(broken_division_rules(plan.division), placed))


def broken_placement_rules(
    sequence: KernelSequence,
    placement: TensorPlacement,
    limit: int,
    mode: Mode,
    offsets: Sequence[int] | None = None,
) -> Iterator[Finding]:
    """Iterate over all violations of a placement, as pairs of rule and message.

    ``offsets``, if there are any, has an address for each stay, then one for each kernel's
    workspace.
    """
    malformed = list(_malformed(sequence, placement, mode))
    yield from malformed
    if malformed:
        return
    yield from _unmakeable(sequence, placement)
    yield from _KernelWalk(sequence, placement, limit).findings()
    if offsets is not None:
        yield from _addresses(sequence, placement, limit, offsets)


def _malformed(
    sequence: KernelSequence, placement: TensorPlacement, mode: Mode
) -> Iterator[Finding]:
    """Yield stays and moves out of range or forbidden by the mode, and kernels without a valid
    algorithm."""
    count, last = len(sequence.tensors), len(sequence.kernels)
    for stay in placement.stays:
        if not (0 <= stay.tensor < count and 0 <= stay.start < stay.end <= last):
            yield "stay", f"{stay} is empty, or of a tensor or at kernels that do not exist"
        elif (
            mode is Mode.STATIC
            and [stay.start, stay.end] != sequence.lifetimes[stay.tensor].tolist()
        ):
            yield (
                "mode",
                (
                    f"tensor {sequence.tensors[stay.tensor].name!r} is not in one memory for all of"
                    f" its life, which mode {mode} demands"
                ),
            )
    for move in placement.moves:
        if not (0 <= move.tensor < count and 0 <= move.start <= move.end <= last):
            yield (
                "move",
                f"{move} ends before it starts, or is of a tensor or at kernels that do not exist",
            )
        elif mode is Mode.STATIC or (mode is Mode.SYNC and move.start != move.end):
            yield (
                "mode",
                (
                    f"tensor {sequence.tensors[move.tensor].name!r} is moved from {move.start} to"
                    f" {move.end}, which mode {mode} forbids"
                ),
            )
    if len(placement.algorithms) != last:
        yield "algorithm", f"{len(placement.algorithms)} algorithms for {last} kernels"
        return
    for kernel, chosen in zip(sequence.kernels, placement.algorithms, strict=True):
        if not 0 <= chosen < len(kernel.algorithms):
            yield "algorithm", f"kernel {kernel.name!r} has no algorithm {chosen}"


def _unmakeable(sequence: KernelSequence, placement: TensorPlacement) -> Iterator[Finding]:
    """Overlapping copies that must be complete before one listed ahead of them on their engine may
    begin."""
    latest: dict[bool, Move] = {}
    for move in placement.moves:
        if move.start == move.end:
            continue
        engine = move.to_fast and not sequence.link.shared
        ahead = latest.setdefault(engine, move)
        if ahead.start >= move.end:
            names = [sequence.tensors[m.tensor].name for m in (move, ahead)]
            yield (
                "order",
                (
                    f"the copy of {names[0]!r} ends by {move.end}, but is listed after that of"
                    f" {names[1]!r}, which begins at {ahead.start}"
                ),
            )
        if move.start > ahead.start:
            latest[engine] = move


class _KernelWalk:
    """Copies of every tensor, kernel by kernel."""

    def __init__(self, sequence: KernelSequence, placement: TensorPlacement, limit: int) -> None:
        self.sequence, self.placement, self.limit = sequence, placement, limit
        self.here: dict[int, Stay] = {}
        self.in_fast: set[int] = set()
        self.in_slow: set[int] = set()
        self.under_way: set[Move] = set()
        self.clean_at_start: set[int] = set()
        self.taken = 0
        self.arriving = _group_by(placement.stays, "start")
        self.leaving = _group_by(placement.stays, "end")
        self.issued = _group_by(placement.moves, "start")
        self.moves_of = _group_by(placement.moves, "tensor")

    def findings(self) -> Iterator[Finding]:
        """Yield all violations in the order of the kernels."""
        self._begin()
        for k in range(len(self.sequence.kernels) + 1):
            yield from self._position(k)
            if k < len(self.sequence.kernels):
                yield from self._memory(k)
                yield from self._kernel(k)
        yield from self._end()

    def _bytes(self, tensor: int) -> int:
        """Return the bytes of a tensor, rounded up to the alignment."""
        alignment = self.sequence.alignment
        return -(-self.sequence.tensors[tensor].bytes // alignment) * alignment

    def _name(self, tensor: int) -> str:
        """Return the name of a tensor in quotes."""
        return repr(self.sequence.tensors[tensor].name)

    def _begin(self) -> None:
        """Put weights and inputs where their first stay, or its absence, says."""
        fetched = {move.tensor for move in self.issued[0] if move.to_fast}
        at_start = {
            stay.tensor
            for stay in self.arriving[0]
            if stay.tensor not in fetched and not self._made_at_once(stay)
        }
        self.at_start = at_start
        for t, tensor in enumerate(self.sequence.tensors):
            if tensor.kind not in (StoredKind.WEIGHT, StoredKind.INPUT):
                continue
            if t not in at_start:
                self.in_slow.add(t)
                continue
            self.in_fast.add(t)
            if tensor.kind is StoredKind.WEIGHT and self._clean_to_the_end(t):
                self.in_slow.add(t)
                self.clean_at_start.add(t)

    def _made_at_once(self, stay: Stay) -> bool:
        """Whether the first kernel makes the tensor anew and nothing of it stays on from the step
        before."""
        fresh = any(
            o.tensor == stay.tensor and not o.read for o in self.sequence.kernels[0].operands
        )
        return fresh and all(
            other.tensor != stay.tensor for other in self.leaving[len(self.sequence.kernels)]
        )

    def _clean_to_the_end(self, tensor: int) -> bool:
        """Whether a slow copy of a weight is valid at the end, given that it is at the start: then
        it may be at both."""
        written = [k for k, operand in self.sequence.uses[tensor] if operand.write]
        copied = [move.start if move.to_fast else move.end for move in self.moves_of[tensor]]
        return not written or max(copied, default=-1) > written[-1]

    def _position(self, p: int) -> Iterator[Finding]:
        """Replay the position before kernel ``p``: copies that end, stays that end, stays that
        begin, copies that begin, in this order; yield violations. Copies out that block come before
        the stays."""
        moves = self.issued[p]
        for move in [move for move in self.under_way if move.end == p]:
            self._complete(move)
        for move in moves:
            if move.end == p and not move.to_fast:
                yield from self._issue(move)
                self._complete(move)
        for stay in self.leaving[p]:
            yield from self._leave(stay)
        for stay in self.arriving[p]:
            yield from self._arrive(stay)
        for move in moves:
            if move.to_fast or move.end > p:
                yield from self._issue(move)
                if move.end == p:
                    self._complete(move)

    def _issue(self, move: Move) -> Iterator[Finding]:
        """Begin a copy; yield violations if the tensor is copied already or its source is not
        valid."""
        tensor, p = move.tensor, move.start
        what = f"tensor {self._name(tensor)}, copied {'in' if move.to_fast else 'out'} at {p}"
        if any(other.tensor == tensor for other in self.under_way):
            yield "copy", f"{what}: another copy of it is under way"
        if move.to_fast:
            if tensor not in self.in_slow:
                yield "copy", f"{what}: the slow memory holds no valid copy"
            if tensor not in self.here or self.here[tensor].start != p:
                yield "copy", f"{what}: no stay begins there"
            elif tensor in self.in_fast:
                yield "copy", f"{what}: its stay begins with another copy"
        elif tensor not in self.in_fast:
            yield "copy", f"{what}: the fast memory holds no valid copy"
        self.under_way.add(move)

    def _complete(self, move: Move) -> None:
        """End a copy: its destination is valid."""
        self.under_way.discard(move)
        if move.to_fast:
            self.in_fast.add(move.tensor)
        else:
            self.in_slow.add(move.tensor)

    def _leave(self, stay: Stay) -> Iterator[Finding]:
        """End a stay; yield a violation if the tensor is being copied. Weights and outputs that
        stay to the end of the step remain valid."""
        tensor, p, last = stay.tensor, stay.end, len(self.sequence.kernels)
        self.taken -= self._bytes(tensor)
        if any(move.tensor == tensor for move in self.under_way):
            yield (
                "copy",
                f"tensor {self._name(tensor)} leaves the fast memory at {p} while it is copied",
            )
        if p == last and self.sequence.tensors[tensor].kind in (
            StoredKind.WEIGHT,
            StoredKind.OUTPUT,
        ):
            return
        self.here.pop(tensor, None)
        self.in_fast.discard(tensor)

    def _arrive(self, stay: Stay) -> Iterator[Finding]:
        """Begin a stay; yield violations if the tensor has one already, or is neither fetched,
        written nor kept from the step before."""
        tensor, p = stay.tensor, stay.start
        if tensor in self.here:
            yield "stay", f"tensor {self._name(tensor)} has two stays at {p}"
        self.here[tensor] = stay
        self.taken += self._bytes(tensor)
        fetched = any(move.to_fast and move.start == p for move in self.moves_of[tensor])
        began = p == 0 and tensor in self.at_start and tensor in self.in_fast
        made = any(
            o.tensor == tensor and o.write and not o.read for o in self.sequence.kernels[p].operands
        )
        if not (fetched or began or made):
            yield (
                "stay",
                (
                    f"tensor {self._name(tensor)} is in the fast memory from {p} on, but nothing"
                    " brings it there"
                ),
            )

    def _memory(self, k: int) -> Iterator[Finding]:
        """Yield a violation if stays and workspace exceed the limit during kernel ``k``."""
        kernel = self.sequence.kernels[k]
        taken = self.taken + kernel.algorithms[self.placement.algorithms[k]].workspace
        if taken > self.limit:
            yield (
                "limit",
                (
                    f"kernel {kernel.name!r} ({k}): {taken} bytes in the fast memory,"
                    f" {taken - self.limit} more than the limit"
                ),
            )

    def _kernel(self, k: int) -> Iterator[Finding]:
        """Run kernel ``k``; yield violations for operands without a valid copy and for those it
        cannot use in the slow memory."""
        kernel = self.sequence.kernels[k]
        in_slow = []
        for operand in kernel.operands:
            slow = not self._finds_fast(operand)
            in_slow.append(slow)
            if slow and operand.read and operand.tensor not in self.in_slow:
                yield (
                    "operand",
                    (
                        f"kernel {kernel.name!r} ({k}) reads {self._name(operand.tensor)}, of which"
                        " neither memory holds a valid copy"
                    ),
                )
            if operand.write:
                yield from self._write(operand.tensor, slow, f"kernel {kernel.name!r} ({k})")
        if math.isinf(kernel.seconds(in_slow, self.placement.algorithms[k])):
            names = ", ".join(
                self._name(o.tensor)
                for o, slow in zip(kernel.operands, in_slow, strict=True)
                if slow
            )
            yield "in-place", f"kernel {kernel.name!r} ({k}) cannot use {names} in the slow memory"

    def _finds_fast(self, operand: KernelOperand) -> bool:
        """Whether a kernel finds an operand in the fast memory, or may write it there."""
        arriving = any(move.tensor == operand.tensor and move.to_fast for move in self.under_way)
        made_here = operand.tensor in self.here and not operand.read and not arriving
        return operand.tensor in self.in_fast or made_here

    def _write(self, tensor: int, slow: bool, kernel: str) -> Iterator[Finding]:
        """Mark a tensor as valid in one memory alone; yield a violation if it is being copied."""
        if any(move.tensor == tensor for move in self.under_way):
            yield "race", f"{kernel} writes {self._name(tensor)} while it is copied"
        (self.in_slow if slow else self.in_fast).add(tensor)
        (self.in_fast if slow else self.in_slow).discard(tensor)

    def _end(self) -> Iterator[Finding]:
        """Yield violations at the end of the step: results in neither memory, and weights that are
        not where the next step expects them. No copy is under way: each ends by then."""
        for t, tensor in enumerate(self.sequence.tensors):
            kept = tensor.kind is StoredKind.WEIGHT or (
                tensor.kind is StoredKind.OUTPUT and self.sequence.uses[t]
            )
            if kept and t not in self.in_fast and t not in self.in_slow:
                yield "kept", f"{tensor.kind} {self._name(t)} is in neither memory at the end"
            elif tensor.kind is StoredKind.WEIGHT and t not in (
                self.in_fast if t in self.at_start else self.in_slow
            ):
                yield (
                    "step",
                    (
                        f"weight {self._name(t)} does not end a step in the memory in which it"
                        " begins it"
                    ),
                )
            if t in self.clean_at_start and t not in self.in_slow:
                yield (
                    "step",
                    (
                        f"weight {self._name(t)} has a valid slow copy at the start of a step, but"
                        " not at its end"
                    ),
                )


def _group_by(items: Iterable[_Item], field: str) -> dict[int, list[_Item]]:
    """Group items by a number of theirs."""
    groups = defaultdict[int, list[_Item]](list)
    for item in items:
        groups[getattr(item, field)].append(item)
    return groups


def _addresses(
    sequence: KernelSequence, placement: TensorPlacement, limit: int, offsets: Sequence[int]
) -> Iterator[Finding]:
    """No two stays or workspaces share a byte at once, all are aligned, and none ends past the
    limit."""
    # Not those that the solvers pack: a block that they forget has to be missed here.
    blocks = [
        (sequence.tensors[s.tensor].name, s.start, s.end, sequence.tensors[s.tensor].bytes)
        for s in placement.stays
    ]
    for k, (kernel, chosen) in enumerate(zip(sequence.kernels, placement.algorithms, strict=True)):
        blocks.append(
            (f"workspace of {kernel.name}", k, k + 1, kernel.algorithms[chosen].workspace)
        )
    if len(offsets) != len(blocks):
        yield (
            "address",
            (
                f"{len(offsets)} offsets for {len(placement.stays)} stays and"
                f" {len(sequence.kernels)} workspaces"
            ),
        )
        return
    names, *columns = zip(*blocks, strict=True) if blocks else ((), (), (), ())
    lower, upper, size = (np.array(column, dtype=np.int64) for column in columns)
    every = np.ones_like(size)
    problem = Problem(
        lower, upper, size, every * sequence.alignment, every * FREE, every * FREE, tuple(names)
    )
    used = np.where(size > 0, np.array(offsets, dtype=np.int64), 0)
    for rule, message in broken_rules(problem, used, limit):
        yield "address", f"{rule}: {message}"


def broken_division_rules(division: DividedSequence | None) -> Iterator[Finding]:
    """Iterate over all violations of a division, as pairs of rule and message; none where nothing
    is divided. O(pieces of operands)."""
    if division:
        for message in _division_faults(division):
            yield "piece", message


def _division_faults(division: DividedSequence) -> Iterator[str]:
    """Yield the violations of a division: pieces that do not cover their tensors, and kernels that
    differ from those of the whole sequence."""
    whole, pieces = division.whole, division.sequence
    if not len(division.of) == len(division.begin) == len(pieces.tensors) or not set(
        division.of
    ) <= set(range(len(whole.tensors))):
        yield "pieces and tensors do not match one another"
        return
    yield from _uncovered(division)
    alike = [(s.name, s.link, s.alignment, s.page, len(s.kernels)) for s in (whole, pieces)]
    if alike[0] != alike[1]:
        yield (
            f"the sequence in pieces is not that of {whole.name!r}: its kernels, link,"
            " alignment or pages differ"
        )
        return
    for given, kernel in zip(whole.kernels, pieces.kernels, strict=True):
        yield from _other_kernel(division, given, kernel)


def _uncovered(division: DividedSequence) -> Iterator[str]:
    """Tensors that their pieces do not cover once, or that are not cut at pages."""
    page = division.whole.page
    reached = [0] * len(division.whole.tensors)
    for t, begin, piece in zip(division.of, division.begin, division.sequence.tensors, strict=True):
        tensor = division.whole.tensors[t]
        if begin != reached[t] or piece.kind is not tensor.kind:
            yield (
                f"{piece.name!r} begins at byte {begin} of {tensor.name!r}, of which"
                f" {reached[t]} come before it, or is of another kind"
            )
        if begin and (not page or begin % page):
            yield (
                f"{piece.name!r} begins at byte {begin} of {tensor.name!r}: pages have {page} bytes"
            )
        reached[t] += piece.bytes
    for tensor, bytes_ in zip(division.whole.tensors, reached, strict=True):
        if bytes_ != tensor.bytes:
            yield (
                f"pieces of {tensor.name!r} have {bytes_} bytes in all, and it has {tensor.bytes}"
            )


def _other_kernel(division: DividedSequence, given: Kernel, kernel: Kernel) -> Iterator[str]:
    """Where a kernel does not do with the pieces what it was given to do with the tensors."""
    if replace(kernel, operands=given.operands) != given:
        yield f"kernel {given.name!r} is another one for pieces"
        return
    expected = {operand.tensor: operand for operand in given.operands}
    used = dict.fromkeys(expected, 0)
    for operand in kernel.operands:
        t, piece = division.of[operand.tensor], division.sequence.tensors[operand.tensor]
        if t not in expected:
            yield (
                f"kernel {given.name!r} uses {piece.name!r}, and not the tensor that it is a"
                " piece of"
            )
            continue
        used[t] += piece.bytes
        total = division.whole.tensors[t].bytes
        if not _is_share(
            operand, expected[t], Fraction(piece.bytes, total) if total else Fraction(1)
        ):
            yield (
                f"kernel {given.name!r} uses {piece.name!r} otherwise, or for other seconds,"
                " than its share of the tensor"
            )
        if given.measured is not None and piece.bytes < total:
            yield (
                f"kernel {given.name!r} was measured with all of"
                f" {division.whole.tensors[t].name!r} in one memory"
            )
    if any(bytes_ != division.whole.tensors[t].bytes for t, bytes_ in used.items()):
        yield f"kernel {given.name!r} does not use all pieces of its operands"


def _is_share(piece: KernelOperand, whole: KernelOperand, share: Fraction) -> bool:
    """Whether a piece's operand has the same accesses as the whole's and ``share`` of its times, up
    to rounding."""

    def near(seconds: float, all_seconds: float) -> bool:
        """Whether a time is the share of the whole's time, up to rounding."""
        return (
            seconds == all_seconds
            if math.isinf(all_seconds)
            else math.isclose(seconds, all_seconds * share, rel_tol=ROUNDING)
        )

    same = (piece.read, piece.write) == (whole.read, whole.write)
    return (
        same
        and near(piece.fast_seconds, whole.fast_seconds)
        and near(piece.slow_seconds, whole.slow_seconds)
    )
