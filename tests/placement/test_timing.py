"""The verifier and the timeline of tensor placements, against a simulator that moves versions of
bytes about and steps from event to event."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import seeds
from tests.support.hand_sequence import moves, stays, step
from tests.support.sequences import holds, random_placement, random_sequence

from loadmaster.core.errors import PlacementError
from loadmaster.placement.decisions import TensorPlacement
from loadmaster.placement.sequence import StoredKind
from loadmaster.placement.timing import time_moves


class Inconsistent(Exception):
    pass


def require(condition):
    if not condition:
        raise Inconsistent


def naive_times(sequence, placement):
    """Kernel starts, copies' starts and ends, total: from position to position, each copy once
    something waits for it."""
    kernels, moves, link = len(sequence.kernels), placement.moves, sequence.link
    opened = {}
    spans = {}
    pauses = []

    def make(m):
        """The end of an asynchronous copy, which waits for those before it on its engine, and while
        others block."""
        move = moves[m]
        before = [
            n
            for n in range(m)
            if moves[n].start < moves[n].end and (link.shared or moves[n].to_fast == move.to_fast)
        ]
        free = max((make(n) if n not in spans else spans[n][1] for n in before), default=0.0)
        if m not in spans:
            require(move.start in opened)
            now = start = max(opened[move.start], free)
            left = sequence.tensors[move.tensor].bytes / (
                link.asynchronous_to_fast if move.to_fast else link.asynchronous_to_slow
            )
            for pause, go_on in pauses:
                if pause >= start and left > pause - now:
                    left -= pause - now
                    now = go_on
            spans[m] = start, now + left
        return spans[m][1]

    now = 0.0
    for p in range(kernels + 1):
        now = max([now, *(make(m) for m, move in enumerate(moves) if move.start < move.end == p)])
        for m, move in enumerate(moves):
            if move.start == move.end == p:
                seconds = sequence.tensors[move.tensor].bytes / (
                    link.to_fast if move.to_fast else link.to_slow
                )
                spans[m] = now, now + seconds
                pauses.append(spans[m])
                now += seconds
        opened[p] = now
        if p < kernels:
            now += naive_kernel(sequence, placement, p)
    return (
        [opened[p] for p in range(kernels)],
        [spans[m] for m in range(len(moves))],
        opened[kernels],
    )


def has(placement, tensor, kernel):
    """Whether the kernel finds the tensor in the fast memory."""
    return any(
        stay.tensor == tensor
        and stay.start <= kernel < stay.end
        and not any(
            m.to_fast and (m.tensor, m.start) == (tensor, stay.start) and m.end > kernel
            for m in placement.moves
        )
        for stay in placement.stays
    )


def naive_kernel(sequence, placement, k):
    kernel = sequence.kernels[k]
    return kernel.seconds(
        [not has(placement, o.tensor, k) for o in kernel.operands], placement.algorithms[k]
    )


def naive_check(sequence, placement):
    """Run three steps with version numbers for bytes: one's end is the next one's beginning for
    weights."""
    kernels = len(sequence.kernels)
    for k in range(kernels):
        require(math.isfinite(naive_kernel(sequence, placement, k)))
    for t, tensor in enumerate(sequence.tensors):
        stays = [s for s in placement.stays if s.tensor == t]
        moves = [m for m in placement.moves if m.tensor == t]
        require(all(sum(s.start <= k < s.end for s in stays) <= 1 for k in range(kernels)))
        fills = [m.start for m in moves if m.to_fast]
        require(len(set(fills)) == len(fills))
        require(all(any(s.start == f for s in stays) for f in fills))
        for s in stays:
            ours = [m for m in moves if m.to_fast and m.start == s.start]
            require(all(m.end <= s.end for m in ours))
        starts_fast = any(s.start == 0 for s in stays) and 0 not in fills
        if any(o.tensor == t and not o.read for o in sequence.kernels[0].operands):
            starts_fast = starts_fast and any(s.end == kernels for s in stays)
        born = tensor.kind in (StoredKind.WEIGHT, StoredKind.INPUT)
        now = 0
        for turn in range(3):
            if turn == 0 or tensor.kind is not StoredKind.WEIGHT:
                fast = now if starts_fast and born else None
                slow = (
                    now if born and (tensor.kind is StoredKind.WEIGHT or not starts_fast) else None
                )
            elif starts_fast:
                require(any(s.end == kernels for s in stays) and fast == now)
            else:
                fast = None
                require(slow == now)
            for p in range(kernels + 1):
                for m in moves:
                    if m.start < m.end == p:
                        if m.to_fast:
                            fast = slow
                        else:
                            slow = fast
                for m in moves:
                    if m.start == m.end == p and not m.to_fast:
                        require(fast == now)
                        slow = fast
                at_start = [s for s in stays if s.start == p]
                carried = p == 0 and starts_fast and born
                if p < kernels and not any(s.start < p < s.end for s in stays) and not carried:
                    fast = None
                for m in moves:
                    if m.start == p and m.to_fast:
                        require(slow == now)
                        if m.start == m.end:
                            fast = slow
                    if m.start == p < m.end and not m.to_fast:
                        require(fast == now)
                        require(any(s.start <= p and s.end >= m.end for s in stays))
                if p == kernels:
                    continue
                operand = next((o for o in sequence.kernels[p].operands if o.tensor == t), None)
                if at_start and p not in fills and not carried:
                    require(operand is not None and not operand.read)
                if operand is not None:
                    here = has(placement, t, p)
                    require(not operand.read or (fast if here else slow) == now)
                    if operand.write:
                        require(not any(m.start <= p < m.end for m in moves))
                        now += 1
                        fast, slow = (now, None) if here else (None, now)
            if tensor.kind is StoredKind.OUTPUT and sequence.uses[t]:
                require(now in (fast, slow))


@given(seeds, seeds, st.booleans())
def test_verifier_and_timeline_agree_with_the_naive_simulator(seed, other, in_place):
    sequence = random_sequence(seed, kernels=2 + seed % 6, tensors=1 + other % 5, in_place=in_place)
    placement = random_placement(sequence, other)
    try:
        naive_check(sequence, placement)
        starts, spans, total = naive_times(sequence, placement)
    except Inconsistent:
        assert not holds(sequence, placement)
        return
    assert holds(sequence, placement)
    timeline = time_moves(sequence, placement)
    assert timeline.total == pytest.approx(total)
    assert timeline.kernel_start.tolist() == pytest.approx(starts)
    assert np.column_stack(
        [timeline.move_start, timeline.move_end]
    ).ravel().tolist() == pytest.approx([t for span in spans for t in span])


def test_random_placements_are_of_both_sorts():
    accepted = 0
    for seed in range(200):
        sequence = random_sequence(seed)
        placement = random_placement(sequence, seed)
        accepted += bool(placement.moves) and holds(sequence, placement)
    assert 20 < accepted < 180


def test_a_shared_link_makes_copies_in_one_order():
    sequence, copies = step(), moves("a in 2-3, a out 1-2")
    backwards = TensorPlacement(stays("a 0-2, a 2-4"), copies, (0,) * 5)
    assert time_moves(sequence, backwards).total > 0
    with pytest.raises(PlacementError, match="waits for that of 'a'"):
        time_moves(replace(sequence, link=replace(sequence.link, shared=True)), backwards)
