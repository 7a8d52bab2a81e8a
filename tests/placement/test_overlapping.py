"""Copies that overlap computation: placements are valid and keep the limits, and no placement comes
below the bound."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz, seeds
from tests.support.sequences import even, holds, random_sequence, replayed, training

import loadmaster as lm
from loadmaster.core.effort import Effort
from loadmaster.core.errors import CapacityError
from loadmaster.core.progress import NO_DEADLINE, Deadline
from loadmaster.placement.autotm.at_addresses import place_at_addresses
from loadmaster.placement.autotm.bound import _least, lower_bound
from loadmaster.placement.autotm.engine import place_by_program
from loadmaster.placement.autotm.program import PlacementProgram, broken_intervals
from loadmaster.placement.autotm.sequence_arrays import sequence_arrays
from loadmaster.placement.decisions import Mode, Move, Stay, TensorPlacement, fast_bytes
from loadmaster.placement.timing import time_moves
from loadmaster.placement.verify import broken_placement_rules, verify_placement

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
            ways = itertools.combinations_with_replacement(range(start, end + 1), 2)
            evicts = [(), *((Move(t, False, *way),) for way in ways)]
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


def drawn(tensors, kernels, least, **more):
    """Sequences of up to so many tensors and kernels, and shares of their peak from the least
    on."""
    return given(
        seed=seeds,
        tensors=st.integers(1, tensors),
        kernels=st.integers(1, kernels),
        in_place=st.booleans(),
        share=st.floats(least, 1.0),
        **more,
    )


def within(share, seed, kernels, tensors, in_place):
    """A sequence, and a share of its peak for every kernel."""
    sequence = random_sequence(seed, kernels=kernels, tensors=tensors, in_place=in_place)
    return sequence, even(sequence, int(sequence.peak_bytes * share))


@fuzz(12)
@drawn(2, 3, 0.3)
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
@drawn(8, 12, 0.2)
def test_placements_are_valid(seed, tensors, kernels, in_place, share):
    sequence, limits = within(share, seed, kernels, tensors, in_place)
    try:
        place_by_program(sequence, limits, Mode.SYNC)
    except CapacityError:
        with pytest.raises(CapacityError, match=r"needs \d+ bytes of fast memory"):
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


# Windows of copies, against the obvious loops.


@given(seed=seeds, count=st.integers(1, 40))
def test_minima_of_ranges(seed, count):
    random = np.random.default_rng(seed)
    values = random.normal(size=count)
    begin, end = random.integers(0, count + 1, (2, 30))
    found = _least(values, begin, end)
    assert found.tolist() == [
        values[first:last].min(initial=np.inf) for first, last in zip(begin, end, strict=True)
    ]


@given(seed=seeds, kernels=st.integers(1, 12), copies=st.integers(0, 10))
def test_intervals_are_those_in_which_too_little_is_copied_and_the_worst_comes_first(
    seed, kernels, copies
):
    random = np.random.default_rng(seed)
    begin, end = np.sort(random.integers(0, kernels + 1, (2, copies)), axis=0)
    bytes_, moved = random.random(copies), random.random(kernels) / 4
    blocking = random.random(kernels + 1) / 8
    found = broken_intervals(begin, end, bytes_, moved, blocking, 1000)

    def missing(first, last):
        within = bytes_[(begin >= first) & (end <= last)].sum()
        return float(within - moved[first:last].sum() - blocking[first : last + 1].sum())

    intervals = itertools.combinations_with_replacement(range(kernels + 1), 2)
    every = {interval: missing(*interval) for interval in intervals}
    broken = {interval for interval, bytes_missing in every.items() if bytes_missing > 1e-4}
    assert set(found) <= broken
    assert bool(found) == bool(broken)
    if found:
        assert every[found[0]] >= max(every.values()) - 1e-9


# Copies whose times follow from addresses.


# The end of the memory is not aligned: the padding of what lies there counts.
@example(seed=10, tensors=4, kernels=7, in_place=True, share=0.25, refused=0)
# The solver finds no optimum once a row for an interval is added.
@example(seed=6, tensors=6, kernels=10, in_place=True, share=0.7984208462246241, refused=2)
@fuzz(150)
@drawn(12, 16, 0.2, refused=st.integers(0, 2))
def test_placements_at_addresses_hold(seed, tensors, kernels, in_place, share, refused):
    sequence, limits = within(share, seed, kernels, tensors, in_place)
    fast = int(limits[0])
    try:
        effort = Effort.NORMAL.divided(40_000)
        counted = place_by_program(sequence, limits, Mode.ASYNC, seed=seed, effort=effort)
    except CapacityError:
        return

    def pack(lower, upper, size):
        """Refuse the longest copies, so that shorter ones are tried too."""
        return (
            lm.allocate((lower, upper, size), fast, alignment=sequence.alignment).offsets
            if next(calls) >= refused
            else None
        )

    answers = []
    for _ in range(2):
        calls = iter(range(10))
        found = place_at_addresses(counted, fast, pack, counted.seconds, NO_DEADLINE)
        answers.append(found and (found[0].placement, found[1].tolist()))
    assert answers[0] == answers[1]
    if found is not None:
        rules = broken_placement_rules(sequence, answers[0][0], fast, Mode.ASYNC, answers[0][1])
        assert not any(rules)
        total = time_moves(sequence, answers[0][0]).total
        assert total == pytest.approx(found[0].seconds, rel=1e-9)


def test_copies_give_way_to_addresses_instead_of_limits():
    """Packed as it was counted, the first placement does not fit; with limits lowered until one
    does, the answer took 40.2 s."""
    sequence = random_sequence(5, kernels=30, tensors=24, in_place=False, choices=False)
    plan = lm.place(sequence, "40%", mode="async", strategy="program")
    assert plan.rounds == 1
    assert plan.seconds < 40
    assert verify_placement(plan) == ()


@pytest.mark.parametrize(("kernels", "seed"), [(4, 0), (4, 290), (4, 342), (8, 47), (8, 92)])
def test_copies_that_may_overlap_make_no_small_placement_slower(kernels, seed):
    sequence = random_sequence(seed, kernels=kernels, tensors=kernels, in_place=seed % 2 == 0)
    limit = sequence.peak_bytes // 2
    modes = [lm.place(sequence, limit, mode=mode, gap=0.0) for mode in ("async", "sync")]
    assert modes[0].lower_bound <= modes[0].seconds <= modes[1].seconds * (1 + 1e-9)
