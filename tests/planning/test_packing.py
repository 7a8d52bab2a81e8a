"""Packing: nothing overlaps, nothing ends past the capacity, and reuse says who must be done
first."""

import itertools
import math
from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import crowd, lived

import loadmaster as lm
from loadmaster.allocation.native import packing_problem
from loadmaster.planning.addresses import reuse_pairs
from loadmaster.planning.decisions import most_alive
from loadmaster.planning.packing import pack


def test_what_does_not_fit_is_left_out():
    stays = lived([(0, 10, 6), (0, 10, 6)])
    for worth in ([2, 1], [1, 2]):
        offsets = pack(*stays, worth=partial(np.array, worth), capacity=10, alignment=1)
        assert offsets.tolist() == [worth[0] - 2, worth[1] - 2]
    assert pack(*stays, capacity=10, alignment=1).tolist() == [-1, -1]


def test_the_highest_buffer_need_not_fill_what_it_is_aligned_to():
    for sizes, fits in (((64, 1), True), ((64, 64), False)):
        start, end, size = lived([(0, 9, bytes_) for bytes_ in sizes])
        offsets = pack(start, end, size, capacity=65, alignment=64)
        assert (min(offsets) >= 0) == fits
        assert not fits or offsets[np.argmin(size)] == 64


def naive_fit(start, end, size, order, capacity):
    """Each buffer in turn at its lowest gap, found address by address."""
    offset = [-1] * len(start)
    for buffer in order:
        others = [
            i for i in order if offset[i] >= 0 and start[i] < end[buffer] and start[buffer] < end[i]
        ]
        at = 0
        while any(offset[i] < at + size[buffer] and at < offset[i] + size[i] for i in others):
            at += 1
        offset[buffer] = at if at + size[buffer] <= capacity else -1
    return offset


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 9)), max_size=14),
    st.integers(1, 40),
    st.randoms(),
)
@fuzz(200)
def test_what_fits_in_an_order_is_what_a_look_at_every_address_finds(rows, capacity, dice):
    start, end, size = lived(rows)
    order = list(range(len(rows)))
    dice.shuffle(order)
    problem = packing_problem(lm.problem_of((start, end, size)))
    found = problem.place_what_fits(np.array(order, dtype=np.int64), capacity)
    assert found.tolist() == naive_fit(start, end, size, order, capacity)


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 9), st.integers(1, 9)),
        max_size=14,
    ),
    st.integers(1, 40),
    st.integers(0, 3),
)
@fuzz(200)
def test_exchanges_overlap_nothing_and_leave_out_no_more_worth(rows, capacity, nodes):
    start, end, size = lived([row[:3] for row in rows])
    worth = np.array([row[3] for row in rows], dtype=np.float64)
    problem, order = packing_problem(lm.problem_of((start, end, size))), np.arange(len(rows))
    first = problem.place_what_fits(order, capacity)
    kept = problem.place_what_fits(order, capacity, worth, nodes)
    placed = kept >= 0
    part = lm.problem_of((start[placed], end[placed], size[placed]))
    assert lm.verify_buffers(part, kept[placed], capacity) == ()
    assert worth[placed].sum() >= worth[first >= 0].sum()


def test_of_thousands_of_buffers_what_fits_is_placed_and_nothing_overlaps():
    """More than fit at once, so many that they are kept in a tree, at an alignment that all
    share."""
    dice = np.random.default_rng(3)
    start = np.sort(dice.integers(0, 3000, 4000))
    end, size = start + dice.integers(1, 60, 4000), dice.integers(1, 2000, 4000)
    capacity = most_alive(start, end, size) // 2 // 64 * 64
    offsets = pack(start, end, size, worth=lambda: size, capacity=capacity, alignment=64)
    placed = offsets >= 0
    assert 2000 < placed.sum() < 4000
    assert not (offsets[placed] % 64).any()
    kept = lm.problem_of((start[placed], end[placed], size[placed]))
    assert lm.verify_buffers(kept, offsets[placed], capacity) == ()


def test_what_is_left_out_is_worth_little():
    """A hundredth more at most, in the mean, than what every choice of ten must leave out whose
    load exceeds half of theirs."""
    lost, least = 0, 0
    for seed in range(50):
        start, end, size = crowd(10, 6, 8, 30, seed)
        worth = np.random.default_rng(seed).integers(1, 1000, 10) ** 2
        room = most_alive(start, end, size) // 2
        offsets = pack(start, end, size, worth=worth.copy, capacity=room, alignment=1)
        lost += int(worth[offsets < 0].sum())
        fitting = (
            kept
            for kept in map(np.array, itertools.product([False, True], repeat=10))
            if most_alive(start[kept], end[kept], size[kept]) <= room
        )
        least += min(int(worth[~kept].sum()) for kept in fitting)
    assert least <= lost < 1.01 * least


def test_without_time_only_the_first_order_is_tried():
    """Two orders of three: what the first leaves open, a search finds at once."""
    found = 0
    for seed in range(200):
        stays = crowd(24, 12, 8, 30, seed)
        room = {"capacity": most_alive(*stays), "alignment": 1}
        quick, whole = (
            min(pack(*stays, **room, seconds=seconds)) >= 0 for seconds in (0.0, math.inf)
        )
        assert whole or not quick
        found += whole and not quick
    assert found


def naive_reuse(start, offset, size):
    """Byte by byte."""
    owner = {}
    pairs = set()
    for buffer in sorted(range(len(start)), key=lambda i: (start[i], i)):
        for byte in range(offset[buffer], offset[buffer] + size[buffer]):
            if byte in owner:
                pairs.add((owner[byte], buffer))
            owner[byte] = buffer
    return pairs


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 8)), max_size=20))
@fuzz(200)
def test_reuse_pairs_are_those_found_byte_by_byte(rows):
    start, offset, size = ([row[i] for row in rows] for i in range(3))
    pairs = list(reuse_pairs(start, offset, size))
    assert set(pairs) == naive_reuse(start, offset, size)
