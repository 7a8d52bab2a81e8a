"""Swapping of the least recently used: every kernel has its operands brought in, and waits for it.

What cannot be brought in because the kernel's operands together exceed the limit is used in the
slow memory, largest first. Weights that a step ends with in the fast memory begin the next one
there.
"""

from __future__ import annotations

from collections import OrderedDict

from loadmaster.core.arrays import Ints
from loadmaster.placement.decisions import Move, Stay, TensorPlacement
from loadmaster.placement.sequence import KernelSequence, StoredKind, must_be_fast
from loadmaster.placement.strategies.result import (
    BaselineResult,
    does_not_fit,
    fitting_algorithms,
    timed,
)

_PASSES = 8
"""Steps simulated before weights that are still evicted are made to begin every step in the slow
memory."""


def run(sequence: KernelSequence, limits: Ints) -> BaselineResult:
    """O(operands + evictions) for a step; steps are repeated until weights end where they begin."""
    algorithms, room = fitting_algorithms(sequence, limits)
    weights = {t for t, tensor in enumerate(sequence.tensors) if tensor.kind is StoredKind.WEIGHT}
    carried = weights
    for attempt in range(_PASSES + 1):
        step = _CacheState(sequence, room, weights, carried if attempt < _PASSES else set())
        if step.carried <= step.held.keys():
            break
        carried = step.carried & step.held.keys()
    return timed(sequence, TensorPlacement(tuple(step.stays), tuple(step.moves), algorithms))


class _CacheState:
    """One step: what is in the fast memory, least recently used first, since when, and whether a
    slow copy is valid."""

    def __init__(
        self, sequence: KernelSequence, room: Ints, weights: set[int], carried: set[int]
    ) -> None:
        self.sequence = sequence
        self.sizes = sequence.sizes.tolist()
        self.ends = sequence.lifetimes[:, 1].tolist()
        self.stays: list[Stay] = []
        self.moves: list[Move] = []
        self.held: OrderedDict[int, int] = OrderedDict()
        self.used = 0
        self.updated = {o.tensor for kernel in sequence.kernels for o in kernel.operands if o.write}
        self.clean = set(weights)
        self.carried = self._begin(room.tolist(), carried)
        needed = must_be_fast(sequence)
        for k, free in enumerate(room.tolist()):
            self._run(k, free, needed[k])
        self._end(weights)

    def _begin(self, room: list[int], carried: set[int]) -> set[int]:
        """Put in what was carried over and the inputs, as far as there is room; what does not fit
        is in the slow memory."""
        inside = set()
        for t, tensor in enumerate(self.sequence.tensors):
            begins = t in carried or (tensor.kind is StoredKind.INPUT and self.sequence.uses[t])
            if begins and room and self.used + self.sizes[t] <= room[0]:
                self._hold(t, 0)
                inside.add(t)
                if t in self.updated or tensor.kind is StoredKind.INPUT:
                    self.clean.discard(t)
            elif tensor.kind is StoredKind.INPUT:
                self.clean.add(t)
        return inside & carried

    def _hold(self, t: int, since: int) -> None:
        """Begin a stay of a tensor."""
        self.held[t] = since
        self.used += self.sizes[t]

    def _release(self, t: int, at: int) -> None:
        """End a stay of a tensor."""
        since = self.held.pop(t)
        self.used -= self.sizes[t]
        if at > since:
            self.stays.append(Stay(t, since, at))

    def _run(self, k: int, free: int, needed: set[int]) -> None:
        """Bring in the operands of kernel ``k``, use them, and drop what ends."""
        operands = self.sequence.kernels[k].operands
        wanted = {o.tensor for o in operands}
        for t in sorted(wanted - needed, key=lambda t: (-self.sizes[t], t)):
            if sum(self.sizes[u] for u in wanted) > free:
                wanted.discard(t)
        coming = sum(self.sizes[t] for t in wanted if t not in self.held)
        self._make_room(k, free - coming, wanted)
        for operand in operands:
            t = operand.tensor
            if t in wanted or t in self.held:
                if t not in self.held:
                    self._hold(t, k)
                    if operand.read:
                        self.moves.append(Move(t, True, k, k))
                if operand.write:
                    self.clean.discard(t)
                self.held.move_to_end(t)
            elif operand.write:
                self.clean.add(t)
        for operand in operands:
            t = operand.tensor
            if t in self.held and self.ends[t] == k + 1 < len(self.sequence.kernels):
                self._release(t, k + 1)

    def _make_room(self, k: int, free: int, wanted: set[int]) -> None:
        """Evict the least recently used until at most ``free`` bytes are held, with copies to the
        slow memory of those that it has none of."""
        for t in sorted(wanted):
            if t in self.held:
                self.held.move_to_end(t)
        while self.used > free:
            oldest = next(iter(self.held), None)
            if oldest is None or oldest in wanted:
                raise does_not_fit(self.sequence, k, "lru")
            if k == 0:
                # It was put in only just now: let it begin in the slow memory.
                self.carried.discard(oldest)
            elif oldest not in self.clean:
                self.moves.append(Move(oldest, False, k, k))
            self.clean.add(oldest)
            self._release(oldest, k)

    def _end(self, weights: set[int]) -> None:
        """End all stays; updated weights that do not begin the next step here are copied back."""
        last = len(self.sequence.kernels)
        leaving = weights - self.carried - self.clean
        for t, since in sorted(self.held.items()):
            if t in leaving:
                self.moves.append(Move(t, False, last, last))
            self.stays.append(Stay(t, since, last))


BASELINE = run
