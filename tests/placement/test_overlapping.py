"""Copies that overlap computation: placements are valid and keep the limits, and no placement comes
below the bound."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.sequences import even, holds, random_sequence, replayed, training

from loadmaster.core.errors import CapacityError, PlacementError
from loadmaster.core.progress import Deadline
from loadmaster.placement.autotm.bound import lower_bound
from loadmaster.placement.autotm.engine import place_by_program
from loadmaster.placement.autotm.program import PlacementProgram
from loadmaster.placement.autotm.sequence_arrays import sequence_arrays
from loadmaster.placement.decisions import Mode, Move, Stay, TensorPlacement, fast_bytes
from loadmaster.placement.timing import time_moves

MOST = 300
"""Placements of a sequence that are tried: all, or as many at random."""


def place_overlapping(sequence, limits, **options):
    return place_by_program(sequence, limits, Mode.ASYNC, **options)


def lives(sequence, t):
    """Every way for one tensor to stay at most twice, with at most one copy each way for each stay,
    that the verifier accepts."""
    kernels = len(sequence.kernels)
    spans = list(itertools.combinations(range(kernels + 1), 2))
    sets = [
        (),
        *((s,) for s in spans),
        *((a, b) for a, b in itertools.combinations(spans, 2) if a[1] <= b[0]),
    ]
    found = []
    for stays in sets:
        options = []
        for start, end in stays:
            fills = [(), *((Move(t, True, start, stop),) for stop in range(start, end + 1))]
            evicts = [
                (),
                *(
                    (Move(t, False, a, b),)
                    for a in range(start, end + 1)
                    for b in range(a, end + 1)
                ),
            ]
            options.append([fill + evict for fill in fills for evict in evicts])
        for moves in itertools.product(*options):
            life = tuple(Stay(t, *stay) for stay in stays), tuple(itertools.chain(*moves))
            if accepted(sequence, t, life):
                found.append(life)
    return found


def accepted(sequence, t, life):
    """Whether the verifier finds nothing wrong with this tensor, all others being fast."""
    others = tuple(
        Stay(u, a, b) for u, (a, b) in enumerate(sequence.lifetimes.tolist()) if u != t and a < b
    )
    return holds(
        sequence, TensorPlacement(life[0] + others, ordered(life[1]), (0,) * len(sequence.kernels))
    )


def ordered(moves):
    return tuple(sorted(moves, key=lambda move: (move.start, move.end)))


def placements(sequence, seed):
    each = [lives(sequence, t) for t in range(len(sequence.tensors))]
    algorithms = list(
        itertools.product(*(range(len(kernel.algorithms)) for kernel in sequence.kernels))
    )
    rng = random.Random(seed)
    if len(algorithms) * np.prod([float(len(options)) for options in each]) <= MOST:
        chosen = list(itertools.product(*each, algorithms))
    else:
        chosen = [
            (*(rng.choice(options) for options in each), rng.choice(algorithms))
            for _ in range(MOST)
        ]
    return [
        TensorPlacement(
            tuple(itertools.chain(*(s for s, _ in parts))),
            ordered(tuple(itertools.chain(*(m for _, m in parts)))),
            algorithm,
        )
        for *parts, algorithm in chosen
    ]


def within(share, seed, kernels, tensors, in_place):
    """A sequence, and a share of its peak for every kernel."""
    sequence = random_sequence(seed, kernels=kernels, tensors=tensors, in_place=in_place)
    return sequence, np.full(kernels, int(sequence.peak_bytes * share))


@fuzz(12)
@given(
    seed=st.integers(0, 10**9),
    tensors=st.integers(1, 2),
    kernels=st.integers(1, 3),
    in_place=st.booleans(),
    share=st.floats(0.3, 1.0),
)
def test_no_placement_comes_below_the_bound(seed, tensors, kernels, in_place, share):
    sequence, limits = within(share, seed, kernels, tensors, in_place)
    try:
        solution = place_overlapping(sequence, limits, gap=0.0)
    except CapacityError:
        solution = None
    bounds = (
        [0.0] if solution is None else [solution.lower_bound, *bounds_of(sequence, limits, seed)]
    )
    for placement in placements(sequence, seed):
        if (fast_bytes(sequence, placement) > limits).any() or not holds(sequence, placement):
            continue
        assert solution is not None, "the engine says that nothing fits"
        assert max(bounds) <= time_moves(sequence, placement).total * (1 + 1e-12)


def bounds_of(sequence, limits, seed):
    """The bound of the program's prices, and of these distorted: any prices are as good as far as
    validity goes."""
    arrays = sequence_arrays(sequence, limits)
    program = PlacementProgram(arrays, True, sequence.link)
    prices = program.prices(program.solve())
    rng = np.random.default_rng(seed)
    found = [lower_bound(arrays, prices, True, sequence.link)]
    for _ in range(3):
        prices.memory[:] *= rng.uniform(0, 2, arrays.kernel_count)
        prices.to_slow[:] = (
            np.floor(prices.to_slow * rng.uniform(0, 1, arrays.kernel_count) * 2**30) / 2**30
        )
        found.append(lower_bound(arrays, prices, True, sequence.link))
    return found


# A copy back must wait for the copy out of an earlier gap too.
@example(seed=191, tensors=8, kernels=8, in_place=True, share=1.0)
@fuzz(40)
@given(
    seed=st.integers(0, 10**9),
    tensors=st.integers(1, 8),
    kernels=st.integers(1, 12),
    in_place=st.booleans(),
    share=st.floats(0.2, 1.0),
)
def test_placements_are_valid(seed, tensors, kernels, in_place, share):
    sequence, limits = within(share, seed, kernels, tensors, in_place)
    try:
        place_by_program(sequence, limits, Mode.SYNC)
    except CapacityError:
        with pytest.raises(CapacityError):
            place_overlapping(sequence, limits)
        return
    solution = place_overlapping(sequence, limits)
    assert replayed(sequence, solution.placement, Mode.ASYNC, limits).total == solution.seconds
    assert solution.lower_bound <= solution.seconds


def test_copies_are_hidden_where_the_link_is_fast():
    sequence = training(8, in_place=False, bandwidth=8.0)
    limits = even(sequence, 5 * 8)
    solution = place_overlapping(sequence, limits, gap=0.0)
    assert place_by_program(sequence, limits, Mode.SYNC).seconds > 16.0
    assert solution.seconds == 16.0
    assert solution.lower_bound == pytest.approx(16.0)
    assert all(move.start < move.end for move in solution.placement.moves)


def test_the_same_answer_every_time_and_a_deadline_returns_an_answer():
    sequence = training(8, in_place=False, bandwidth=4.0)
    limits = even(sequence, 4 * 8)
    first, second = (place_overlapping(sequence, limits, seed=3) for _ in range(2))
    assert first.placement == second.placement
    hurried = place_overlapping(sequence, limits, deadline=Deadline.within(0))
    assert hurried.interrupted
    assert (fast_bytes(sequence, hurried.placement) <= limits).all()
    assert hurried.lower_bound <= first.lower_bound


def test_limits_that_make_no_sense_are_refused():
    sequence = training(3, in_place=True, bandwidth=8.0)
    with pytest.raises(PlacementError, match="limits: give 6 whole numbers"):
        place_overlapping(sequence, np.zeros(5, dtype=np.int64))
