"""The timeline of kernels and copies of a tensor placement: the one place that turns a placement
into seconds.

Position ``p`` is a barrier. Kernel ``p`` - 1 has ended, then every copy that must be complete
there, then the blocking copies of ``p`` run one after another, in the order listed; then kernel
``p`` starts, and the asynchronous copies that begin at ``p`` may. So a copy that fills memory never
overtakes the one that frees it. Each copy engine makes its copies in the order listed, one at a
time. While a copy blocks, it has the link to itself: the engines pause.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.core.errors import PlacementError
from loadmaster.placement.decisions import Move, TensorPlacement, operands_in_slow
from loadmaster.placement.sequence import KernelSequence


@dataclass(frozen=True, eq=False)
class MovementTimeline:
    """Seconds at which every kernel and every copy starts and ends, copies in the order of the
    placement's ``moves``.

    ``total`` is when the last kernel and the last copy have ended.
    """

    kernel_start: Floats
    kernel_end: Floats
    move_start: Floats
    move_end: Floats
    total: float


def move_seconds(sequence: KernelSequence, move: Move) -> float:
    """Return the seconds that a copy occupies its engine, or blocks computation."""
    link = sequence.link
    if move.start == move.end:
        bandwidth = link.to_fast if move.to_fast else link.to_slow
    else:
        bandwidth = link.asynchronous_to_fast if move.to_fast else link.asynchronous_to_slow
    return sequence.tensors[move.tensor].bytes / bandwidth


def moved_bytes(sequence: KernelSequence, placement: TensorPlacement) -> int:
    """Return the total bytes of all copies."""
    return sum(sequence.tensors[move.tensor].bytes for move in placement.moves)


def time_moves(sequence: KernelSequence, placement: TensorPlacement) -> MovementTimeline:
    """Compute start and end of every kernel and copy of a consistent placement. O(kernels +
    operands + copies).

    Raises
    ------
    PlacementError
        If an engine's order makes a kernel wait for a copy that cannot start before it.
    """
    return _Clock(sequence, placement).run()


class _Clock:
    """Advances from position to position; an engine's copies are timed when the first kernel that
    waits for one of them is reached."""

    def __init__(self, sequence: KernelSequence, placement: TensorPlacement) -> None:
        self.sequence = sequence
        self.moves = placement.moves
        rows = zip(
            sequence.kernels,
            operands_in_slow(sequence, placement),
            placement.algorithms,
            strict=True,
        )
        seconds = [kernel.seconds(in_slow, algorithm) for kernel, in_slow, algorithm in rows]
        self.seconds = np.array(seconds, dtype=np.float64)
        self.opened = [0.0] * (len(sequence.kernels) + 1)
        self.starts, self.ends = [0.0] * len(self.moves), [math.nan] * len(self.moves)
        self.queues: tuple[deque[int], deque[int]] = deque(), deque()
        self.free = [0.0, 0.0]
        self.blocking: list[list[int]] = [[] for _ in self.opened]
        self.awaited: list[list[int]] = [[] for _ in self.opened]
        for m, move in enumerate(self.moves):
            if move.start == move.end:
                self.blocking[move.start].append(m)
            else:
                self.awaited[move.end].append(m)
                self.queues[self._engine(move)].append(m)

    def _engine(self, move: Move) -> int:
        """Return the copy engine of a move: 1 for copies to the fast memory with separate engines,
        else 0."""
        return int(move.to_fast and not self.sequence.link.shared)

    def run(self) -> MovementTimeline:
        """Run kernels and copies in order, and return the times of both in seconds."""
        # Time as the engines see it: it stands still while copies block, for `paused` seconds
        # before each kernel in all.
        now = blocked = 0.0
        paused = [0.0] * len(self.opened)
        for p, seconds in enumerate([*self.seconds.tolist(), 0.0]):
            for m in self.awaited[p]:
                self._make(m, p)
                now = max(now, self.ends[m])
            for m in self.blocking[p]:
                self.starts[m] = now + blocked
                blocked += move_seconds(self.sequence, self.moves[m])
                self.ends[m] = now + blocked
            self.opened[p] = now
            paused[p] = blocked
            now += seconds
        opened, pauses = np.array(self.opened), np.array(paused)
        start = (opened + pauses)[:-1]
        return MovementTimeline(
            start, start + self.seconds, *self._copies(opened, pauses), now + blocked
        )

    def _copies(self, opened: Floats, paused: Floats) -> tuple[Floats, Floats]:
        """Starts and ends of all copies, with the pauses before them."""
        starts, ends = np.array(self.starts), np.array(self.ends)
        overlaps = np.array([move.start < move.end for move in self.moves], dtype=bool)
        starts[overlaps] += paused[np.searchsorted(opened, starts[overlaps], side="right") - 1]
        before = np.searchsorted(opened, ends[overlaps], side="left") - 1
        ends[overlaps] = np.maximum(
            starts[overlaps], ends[overlaps] + np.where(before >= 0, paused[before], 0.0)
        )
        return starts, ends

    def _make(self, awaited: int, position: int) -> None:
        """Time the copies of an engine up to one that must be complete at a position: all of them
        must begin before it."""
        engine = self._engine(self.moves[awaited])
        while math.isnan(self.ends[awaited]):
            m = self.queues[engine].popleft()
            move = self.moves[m]
            if move.start >= position:
                waiting, first = (
                    self.sequence.tensors[self.moves[n].tensor].name for n in (awaited, m)
                )
                raise PlacementError(
                    f"the copy of tensor {waiting!r} must be complete at position {position} but"
                    f" waits for that of {first!r}, which begins at {move.start}: list copies in an"
                    " order in which they can be made"
                )
            self.starts[m] = max(self.free[engine], self.opened[move.start])
            self.ends[m] = self.free[engine] = self.starts[m] + move_seconds(self.sequence, move)
