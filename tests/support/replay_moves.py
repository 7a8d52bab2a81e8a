"""Replays a tensor placement: checks that every kernel and copy finds the bytes that it reads, and
says when each runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, IntEnum

from loadmaster.core.errors import PlacementError
from loadmaster.placement.decisions import Move, Stay, TensorPlacement, operands_in_slow
from loadmaster.placement.sequence import KernelSequence, Operand, StoredKind
from loadmaster.placement.timing import MovementTimeline, time_moves


def replay_moves(sequence: KernelSequence, placement: TensorPlacement) -> MovementTimeline:
    """Simulate kernels and copies as :mod:`loadmaster.placement.timing` describes. O(kernels +
    operands + stays + copies), sorting aside.

    How many bytes the fast memory holds is not looked at here.

    Raises
    ------
    PlacementError
        If a kernel or a copy would find no valid bytes, a stay or copy makes no sense, or copies
        wait for each other in a circle; the message names the tensor.
    """
    _check_ranges(sequence, placement)
    stays: list[list[Stay]] = [[] for _ in sequence.tensors]
    moves: list[list[Move]] = [[] for _ in sequence.tensors]
    for stay in placement.stays:
        stays[stay.tensor].append(stay)
    for move in placement.moves:
        moves[move.tensor].append(move)
    for t, uses in enumerate(sequence.uses):
        if stays[t] or moves[t] or uses:
            _Life(sequence, t, stays[t], moves[t]).check()
    _check_times(sequence, placement)
    return time_moves(sequence, placement)


def _check_ranges(sequence: KernelSequence, placement: TensorPlacement) -> None:
    kernels = len(sequence.kernels)
    if len(placement.algorithms) != kernels:
        raise PlacementError(
            f"the placement chooses {len(placement.algorithms)} algorithms for {kernels} kernels:"
            " give one for each"
        )
    for kernel, algorithm in zip(sequence.kernels, placement.algorithms, strict=True):
        if not 0 <= algorithm < len(kernel.algorithms):
            raise PlacementError(
                f"kernel {kernel.name!r} has no algorithm {algorithm}: it has"
                f" {len(kernel.algorithms)}"
            )
    for stay in placement.stays:
        _check_span(sequence, "stay", stay.tensor, stay.start, stay.end, stay.end > stay.start)
    for move in placement.moves:
        _check_span(sequence, "copy", move.tensor, move.start, move.end, move.end >= move.start)


def _check_span(
    sequence: KernelSequence, what: str, tensor: int, start: int, end: int, forward: bool
) -> None:
    tensors, kernels = len(sequence.tensors), len(sequence.kernels)
    if not 0 <= tensor < tensors:
        raise PlacementError(f"a {what} names tensor {tensor}, but there are {tensors}")
    if not (forward and start >= 0 and end <= kernels):
        name = sequence.tensors[tensor].name
        raise PlacementError(
            f"tensor {name!r}: a {what} from {start} to {end} does not lie within the {kernels}"
            " kernels"
        )


def _check_times(sequence: KernelSequence, placement: TensorPlacement) -> None:
    """Refuse operands that a kernel cannot use where they are."""
    rows = zip(
        sequence.kernels, operands_in_slow(sequence, placement), placement.algorithms, strict=True
    )
    for kernel, in_slow, algorithm in rows:
        if math.isinf(kernel.seconds(in_slow, algorithm)):
            at_fault = next(
                o.tensor for o, slow in zip(kernel.operands, in_slow, strict=True) if slow
            )
            raise PlacementError(
                f"kernel {kernel.name!r} cannot use tensor {sequence.tensors[at_fault].name!r} in"
                " the slow memory"
            )


class _Rank(IntEnum):
    """The order of what happens to one tensor at one position."""

    COMPLETE = 0
    EVICT = 1
    LEAVE = 2
    ENTER = 3
    BEGIN = 4
    USE = 5


class _Fast(Enum):
    """What the fast memory holds of a tensor: nothing, room for it, or its bytes."""

    ABSENT = 0
    ROOM = 1
    BYTES = 2


class _Life:
    """Follows one tensor from position to position."""

    def __init__(
        self, sequence: KernelSequence, tensor: int, stays: list[Stay], moves: list[Move]
    ) -> None:
        self.name = sequence.tensors[tensor].name
        self.kind = sequence.tensors[tensor].kind
        self.kernels = sequence.kernels
        self.fills = {move.start for move in moves if move.to_fast}
        self.events: list[tuple[int, int, Callable[[int], None]]] = []
        for stay in stays:
            self._at(stay.start, _Rank.ENTER, self._enter)
            if stay.end < len(self.kernels):
                self._at(stay.end, _Rank.LEAVE, self._leave)
        for move in moves:
            self._add_move(move)
        self.operands: dict[int, Operand] = dict(sequence.uses[tensor])
        self.carried = self._carried(stays)
        for k in self.operands:
            self._at(k, _Rank.USE, self._use)
        self.events.sort(key=lambda event: event[:2])

    def _carried(self, stays: list[Stay]) -> bool:
        """Whether the fast memory holds the tensor when the step begins: a stay from 0 that neither
        a copy nor kernel 0 fills."""
        if (
            self.kind not in (StoredKind.WEIGHT, StoredKind.INPUT)
            or 0 in self.fills
            or all(stay.start for stay in stays)
        ):
            return False
        operand = self.operands.get(0)
        return (
            operand is None or operand.read or any(stay.end == len(self.kernels) for stay in stays)
        )

    def _at(self, position: int, rank: _Rank, act: Callable[[int], None]) -> None:
        self.events.append((position, rank, act))

    def _add_move(self, move: Move) -> None:
        blocking = move.start == move.end
        if move.to_fast:
            self._at(move.start, _Rank.BEGIN, self._fill_blocking if blocking else self._fill)
            if not blocking:
                self._at(move.end, _Rank.COMPLETE, self._filled)
        elif blocking:
            self._at(move.start, _Rank.EVICT, self._evict_blocking)
        else:
            self._at(move.start, _Rank.BEGIN, self._evict)
            self._at(move.end, _Rank.COMPLETE, self._evicted)

    def check(self) -> None:
        """Raise `PlacementError` unless every reader finds valid bytes and, for a weight, the next
        step does too."""
        born = self.kind in (StoredKind.WEIGHT, StoredKind.INPUT)
        # A weight's slow copy is valid at the start if it is at the end: assume so, and if not,
        # look again without.
        self._follow(slow=born and not (self.carried and self.kind is StoredKind.INPUT))
        if self.kind is StoredKind.WEIGHT:
            if self.carried and not self.slow:
                self._follow(slow=False)
            if self.carried and self.fast is not _Fast.BYTES:
                self._fail(
                    len(self.kernels),
                    "is in the fast memory when a step begins, but not when it ends",
                )
            if not self.carried and not self.slow:
                self._fail(
                    len(self.kernels),
                    "begins a step in the slow memory but has no valid copy there when it ends",
                )
        if (
            self.kind is StoredKind.OUTPUT
            and self.operands
            and not (self.slow or self.fast is _Fast.BYTES)
        ):
            self._fail(len(self.kernels), "is handed to the caller but valid nowhere")

    def _follow(self, slow: bool) -> None:
        self.slow = slow
        self.fast = _Fast.BYTES if self.carried else _Fast.ABSENT
        self.filling = self.entered = False
        self.evicting = 0
        for position, _, act in self.events:
            act(position)

    def _fail(self, position: int, what: str) -> None:
        where = repr(self.kernels[position].name) if position < len(self.kernels) else "the end"
        raise PlacementError(f"tensor {self.name!r} at position {position} ({where}) {what}")

    def _enter(self, p: int) -> None:
        if p == 0 and self.carried and not self.entered:
            self.entered = True
            return
        if self.fast is not _Fast.ABSENT:
            self._fail(p, "has two stays at once")
        operand = self.operands.get(p)
        if p not in self.fills and (operand is None or operand.read):
            self._fail(
                p,
                "begins a stay that nothing fills: no copy begins there and the kernel does not"
                " just write it",
            )
        self.fast = _Fast.ROOM

    def _leave(self, p: int) -> None:
        if self.filling or self.evicting:
            self._fail(p, "ends a stay while a copy of it is under way")
        self.fast = _Fast.ABSENT

    def _fill(self, p: int) -> None:
        if self.fast is not _Fast.ROOM:
            self._fail(p, "is copied to the fast memory where no stay of it begins")
        if not self.slow:
            self._fail(p, "is copied from the slow memory, where no valid copy of it is")
        if self.filling:
            self._fail(p, "is copied twice at once")
        self.filling = True

    def _filled(self, p: int) -> None:
        self.filling = False
        self.fast = _Fast.BYTES

    def _fill_blocking(self, p: int) -> None:
        self._fill(p)
        self._filled(p)

    def _evict(self, p: int) -> None:
        if self.fast is not _Fast.BYTES:
            self._fail(p, "is copied from the fast memory, where it is not")
        self.evicting += 1

    def _evicted(self, p: int) -> None:
        self.evicting -= 1
        self.slow = True

    def _evict_blocking(self, p: int) -> None:
        self._evict(p)
        self._evicted(p)

    def _use(self, p: int) -> None:
        operand = self.operands[p]
        if operand.write and (self.filling or self.evicting):
            self._fail(p, "is written while a copy of it is under way")
        in_fast = self.fast is not _Fast.ABSENT and not self.filling
        if operand.read and not (self.fast is _Fast.BYTES if in_fast else self.slow):
            self._fail(p, "is read where no valid copy of it is")
        if operand.write:
            self.slow = not in_fast
            self.fast = _Fast.BYTES if in_fast else self.fast
