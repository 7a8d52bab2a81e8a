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

from loadmaster.core.arrays import Floats, Mask
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
    moves = placement.moves
    rows = zip(
        sequence.kernels, operands_in_slow(sequence, placement), placement.algorithms, strict=True
    )
    seconds = [kernel.seconds(in_slow, algorithm) for kernel, in_slow, algorithm in rows]
    starts, ends = [0.0] * len(moves), [math.nan] * len(moves)
    # Time as the engines see it: it stands still while copies block, for `paused` seconds before
    # each kernel in all.
    opened, paused = [0.0] * (len(seconds) + 1), [0.0] * (len(seconds) + 1)
    blocking: list[list[int]] = [[] for _ in opened]
    awaited: list[list[int]] = [[] for _ in opened]
    # Copies to the fast memory have an engine of their own unless both directions share the link.
    engines = [move.to_fast and not sequence.link.shared for move in moves]
    queues: tuple[deque[int], deque[int]] = deque(), deque()
    free = [0.0, 0.0]
    for m, (move, engine) in enumerate(zip(moves, engines, strict=True)):
        if move.start == move.end:
            blocking[move.start].append(m)
        else:
            awaited[move.end].append(m)
            queues[engine].append(m)

    def make(last: int, position: int) -> None:
        """Time the copies of an engine up to one that must be complete at a position: all of them
        must begin before it."""
        engine = engines[last]
        while math.isnan(ends[last]):
            m = queues[engine].popleft()
            move = moves[m]
            if move.start >= position:
                waiting, first = (sequence.tensors[moves[n].tensor].name for n in (last, m))
                raise PlacementError(
                    f"the copy of tensor {waiting!r} must be complete at position {position} but"
                    f" waits for that of {first!r}, which begins at {move.start}: list copies in an"
                    " order in which they can be made"
                )
            starts[m] = max(free[engine], opened[move.start])
            ends[m] = free[engine] = starts[m] + move_seconds(sequence, move)

    now = blocked = 0.0
    for p, kernel_seconds in enumerate([*seconds, 0.0]):
        for m in awaited[p]:
            make(m, p)
            now = max(now, ends[m])
        for m in blocking[p]:
            starts[m] = now + blocked
            blocked += move_seconds(sequence, moves[m])
            ends[m] = now + blocked
        opened[p], paused[p] = now, blocked
        now += kernel_seconds
    positions, pauses = np.array(opened), np.array(paused)
    start = (positions + pauses)[:-1]
    overlaps = np.array([move.start < move.end for move in moves], dtype=bool)
    copies = _with_pauses(np.array(starts), np.array(ends), overlaps, positions, pauses)
    return MovementTimeline(start, start + np.array(seconds), *copies, now + blocked)


def _with_pauses(
    starts: Floats, ends: Floats, overlaps: Mask, opened: Floats, paused: Floats
) -> tuple[Floats, Floats]:
    """Starts and ends of all copies, those that overlap kernels with the pauses before them."""
    starts[overlaps] += paused[np.searchsorted(opened, starts[overlaps], side="right") - 1]
    before = np.searchsorted(opened, ends[overlaps], side="left") - 1
    ends[overlaps] = np.maximum(
        starts[overlaps], ends[overlaps] + np.where(before >= 0, paused[before], 0.0)
    )
    return starts, ends
