"""Memory space assignment in the manner of XLA: greedy by benefit, one tensor's use intervals after
another, with prefetches.

Tensors come in the order of the seconds they save for each byte of fast memory and kernel of life.
A tensor stays from one use to the next while there is room. Else it is copied out after the last
use before, if its bytes are needed and have no valid copy, and copied back as late as the bandwidth
that is left allows; both copies overlap computation, and take the link's time from those of later
tensors. What finds neither room nor bandwidth is used in the slow memory. Where a kernel cannot use
it there, room for that kernel alone is set aside from the start, and copies that find no bandwidth
block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.placement.decisions import Move, Stay, TensorPlacement
from loadmaster.placement.sequence import KernelSequence, StoredKind, must_be_fast
from loadmaster.placement.strategies.result import (
    BaselineResult,
    does_not_fit,
    fitting_algorithms,
    timed,
)
from loadmaster.placement.timing import move_seconds


def run(sequence: KernelSequence, limits: Ints) -> BaselineResult:
    """O(uses x kernels between them)."""
    algorithms, room = fitting_algorithms(sequence, limits)
    needed: list[set[int]] = [set() for _ in sequence.tensors]
    for k, tensors in enumerate(must_be_fast(sequence)):
        for t in tensors:
            needed[t].add(k)
            room[k] -= sequence.sizes[t]
    if room.min(initial=0) < 0:
        raise does_not_fit(sequence, int(room.argmin()), "intervals")
    assigner = _Assigner(sequence, algorithms, room)
    for t in _by_benefit(sequence):
        assigner.assign(t, needed[t])
    moves = sorted(assigner.moves, key=lambda move: (move.start, move.end))
    return timed(sequence, TensorPlacement(tuple(assigner.stays), tuple(moves), algorithms))


def _by_benefit(sequence: KernelSequence) -> list[int]:
    """Tensors that are used, those first that save most for each byte and kernel of life."""
    spans = sequence.lifetimes

    def density(t: int) -> float:
        """Return the seconds that a tensor saves in fast memory, per byte and kernel of its
        lifetime."""
        copied = sequence.tensors[t].bytes * (1 / sequence.link.to_fast + 1 / sequence.link.to_slow)
        saved = math.fsum(
            o.slow_seconds - o.fast_seconds if math.isfinite(o.slow_seconds) else copied
            for _, o in sequence.uses[t]
        )
        return saved / (max(1, int(sequence.sizes[t])) * int(spans[t, 1] - spans[t, 0]))

    return sorted((t for t, uses in enumerate(sequence.uses) if uses), key=lambda t: -density(t))


@dataclass
class _Segment:
    """Consecutive uses ``first`` to ``last`` of a tensor that find it in the fast memory: its stay,
    and the copies at its ends."""

    first: int
    last: int
    start: int
    end: int
    fetch: Move | None = None
    evict: Move | None = None


class _Assigner:
    """Bytes left while each kernel runs, and seconds that each engine has left then."""

    def __init__(self, sequence: KernelSequence, algorithms: tuple[int, ...], room: Ints) -> None:
        self.sequence = sequence
        self.room = room
        rows = zip(sequence.kernels, algorithms, strict=True)
        seconds = np.array(
            [kernel.seconds_within(False, a) for kernel, a in rows], dtype=np.float64
        )
        self.spare = [seconds] * 2 if sequence.link.shared else [seconds, seconds.copy()]
        self.end = len(seconds)
        self.stays: list[Stay] = []
        self.moves: list[Move] = []

    def assign(self, t: int, needed: set[int]) -> None:
        """Decide one tensor; the room that was reserved for it is available to it."""
        self.t, self.needed, self.uses = t, needed, self.sequence.uses[t]
        _, self.bytes, self.kind = self.sequence.tensors[t]
        self.size = int(self.sequence.sizes[t])
        for k in needed:
            self.room[k] += self.size
        if self.kind is StoredKind.WEIGHT and self._fits(0, self.end):
            self._take(0, self.end)
            return
        # The position from which the slow copy is valid.
        valid: int | None = 0 if self.kind in (StoredKind.WEIGHT, StoredKind.INPUT) else None
        i = 0
        while i < len(self.uses):
            segment = self._segment(i, valid)
            if not segment:
                k, operand = self.uses[i]
                valid = k + 1 if operand.write else valid
                i += 1
                continue
            self._commit(segment)
            if segment.evict:
                valid = segment.evict.end
            i = segment.last + 1

    def _segment(self, i: int, valid: int | None) -> _Segment | None:
        """The longest segment that begins with use ``i``, or None if that use is better off in the
        slow memory."""
        uses = self.uses
        k, operand = uses[i]
        if operand.write and not operand.read:
            segment = _Segment(i, i, k, k + 1) if self._fits(k, k + 1) else None
        elif i == 0 and self.kind is StoredKind.INPUT and self._fits(0, k + 1):
            segment = _Segment(i, i, 0, k + 1)
        else:
            segment = self._fetched(i, valid or 0)
        if not segment:
            return None
        while segment.last + 1 < len(uses) and self._fits(
            segment.end, uses[segment.last + 1][0] + 1
        ):
            segment.last += 1
            segment.end = uses[segment.last][0] + 1
        inside = uses[segment.first : segment.last + 1]
        dirty = segment.fetch is None or any(o.write for _, o in inside)
        forced = any(k in self.needed for k, _ in inside)
        return segment if not dirty or self._leave(segment, forced) else None

    def _fetched(self, i: int, valid: int) -> _Segment | None:
        """Copy back as late as the engine's time allows."""
        k = self.uses[i][0]
        seconds = self.bytes / self.sequence.link.asynchronous_to_fast
        # At least one kernel, even for no bytes.
        spare = self.spare[1][valid:k][::-1].cumsum()
        start = k - 1 - int(np.searchsorted(spare, seconds))
        if start >= valid and self._fits(start, k + 1):
            return _Segment(i, i, start, k + 1, fetch=Move(self.t, True, start, k))
        if k in self.needed:
            return _Segment(i, i, k, k + 1, fetch=Move(self.t, True, k, k))
        return None

    def _leave(self, segment: _Segment, forced: bool) -> bool:
        """Add room and time for the copy out at the end of a segment of changed bytes; false if
        there is not enough."""
        if segment.last + 1 < len(self.uses):
            k, operand = self.uses[segment.last + 1]
            if not operand.read:
                return True
        elif self.kind is StoredKind.OUTPUT and self._fits(segment.end, self.end):
            segment.end = self.end
            return True
        elif self.kind in (StoredKind.OUTPUT, StoredKind.WEIGHT):
            k = self.end
        else:
            return True
        seconds = self.bytes / self.sequence.link.asynchronous_to_slow
        end = (
            segment.end + 1 + int(np.searchsorted(self.spare[0][segment.end : k].cumsum(), seconds))
        )
        if end <= k and self._fits(segment.end, end):
            segment.evict, segment.end = Move(self.t, False, segment.end, end), end
            return True
        segment.evict = Move(self.t, False, segment.end, segment.end)
        return forced

    def _fits(self, start: int, end: int) -> bool:
        """Whether there is room for the tensor during some kernels."""
        return start >= end or self.size <= int(self.room[start:end].min())

    def _take(self, start: int, end: int) -> None:
        """Add a stay and take its room."""
        self.room[start:end] -= self.size
        self.stays.append(Stay(self.t, start, end))

    def _commit(self, segment: _Segment) -> None:
        """Take the room, and the engines' time: of copies back from the end, of copies out from the
        start."""
        self._take(segment.start, segment.end)
        for move in (segment.fetch, segment.evict):
            if not move:
                continue
            self.moves.append(move)
            seconds = move_seconds(self.sequence, move)
            spare = self.spare[move.to_fast][move.start : move.end]
            spare = spare[::-1] if move.to_fast else spare
            spare -= np.diff(np.minimum(spare.cumsum(), seconds), prepend=0.0)


BASELINE = run
