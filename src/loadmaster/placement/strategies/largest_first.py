"""Offloading of activations as training frameworks do it: the largest are offloaded first, until
the peak fits.

An activation may go during its longest idle gap, as a rule between forward and backward. Copies
overlap computation: out as soon as the use before the gap has ended, in order; back during the
kernel before the use after it. Only where memory runs out does a kernel wait for copies that are
under way. Weights stay.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.placement.decisions import Move, Stay, TensorPlacement, all_fast
from loadmaster.placement.sequence import KernelSequence, StoredKind
from loadmaster.placement.strategies.result import (
    BaselineResult,
    does_not_fit,
    fitting_algorithms,
    timed,
)


class _IdleGap(NamedTuple):
    """An idle gap: ``tensor`` is not used between kernels ``before`` and ``after``."""

    size: int
    tensor: int
    before: int
    after: int

    @property
    def away(self) -> slice:
        """Kernels during which it can be away: not while it is copied out at the earliest, nor
        while it is copied back."""
        return slice(self.before + 2, self.after - 1)


def run(sequence: KernelSequence, limits: Ints) -> BaselineResult:
    """O(tensors x kernels of a gap)."""
    algorithms, room = fitting_algorithms(sequence, limits)
    over = sequence.live_bytes(workspace=False) - room
    chosen = _choose(sequence, over)
    seconds = [
        kernel.seconds_within(False, a)
        for kernel, a in zip(sequence.kernels, algorithms, strict=True)
    ]
    complete = _completions(sequence, chosen, np.concatenate([[0.0], np.cumsum(seconds)]), over)
    stays = {stay.tensor: [stay] for stay in all_fast(sequence).stays}
    moves = []
    for gap, end in zip(chosen, complete, strict=True):
        whole = stays[gap.tensor][0]
        stays[gap.tensor] = [
            Stay(gap.tensor, whole.start, end),
            Stay(gap.tensor, gap.after - 1, whole.end),
        ]
        moves += [
            Move(gap.tensor, False, gap.before + 1, end),
            Move(gap.tensor, True, gap.after - 1, gap.after),
        ]
    moves.sort(key=lambda move: (move.start, move.end))
    return timed(
        sequence,
        TensorPlacement(tuple(itertools.chain(*stays.values())), tuple(moves), algorithms),
    )


def _choose(sequence: KernelSequence, over: Ints) -> list[_IdleGap]:
    """Gaps in the order in which they begin; ``over`` becomes what is left over the limit with
    these tensors away."""
    gaps = []
    for t, uses in enumerate(sequence.uses):
        if sequence.tensors[t].kind is not StoredKind.WEIGHT and len(uses) > 1:
            kernels = [k for k, _ in uses]
            before, after = max(itertools.pairwise(kernels), key=lambda pair: pair[1] - pair[0])
            if after - before > 3:
                gaps.append(_IdleGap(int(sequence.sizes[t]), t, before, after))
    chosen = []
    for gap in sorted(gaps, key=lambda gap: (-gap.size, gap.before - gap.after, gap.tensor)):
        if over[gap.away].max() > 0:
            over[gap.away] -= gap.size
            chosen.append(gap)
    if over.max(initial=0) > 0:
        raise does_not_fit(sequence, int(over.argmax()), "largest-first")
    return sorted(chosen, key=lambda gap: (gap.before, gap.tensor))


def _completions(
    sequence: KernelSequence, gaps: list[_IdleGap], clock: Floats, over: Ints
) -> list[int]:
    """The position by which each copy out is complete: when the engine gets there, or where its
    memory is needed."""
    ends = []
    free = 0.0
    for gap in gaps:
        free = (
            max(free, float(clock[gap.before + 1]))
            + sequence.tensors[gap.tensor].bytes / sequence.link.asynchronous_to_slow
        )
        ends.append(min(max(int(np.searchsorted(clock, free)), gap.before + 2), gap.after - 1))
    waiting: deque[int] = deque()
    coming = 0
    held = 0
    for k, excess in enumerate(over.tolist()):
        while coming < len(gaps) and gaps[coming].before + 2 <= k:
            waiting.append(coming)
            held += gaps[coming].size
            coming += 1
        while waiting and (ends[waiting[0]] <= k or excess + held > 0):
            g = waiting.popleft()
            ends[g] = min(ends[g], k)
            held -= gaps[g].size
    return ends


BASELINE = run
