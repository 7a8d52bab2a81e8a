"""Baselines: valid placements that keep the limits, or an error that says why not; and what each is
known for."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import seeds
from tests.support.hand_sequence import kernel, operand, sequence_of
from tests.support.sequences import even, holds, random_sequence, training

from loadmaster.allocation.rules import problem_of
from loadmaster.allocation.verify import verify_buffers
from loadmaster.core.errors import CapacityError, PlacementError
from loadmaster.placement.decisions import fast_bytes
from loadmaster.placement.place import place
from loadmaster.placement.strategies.memory_mode import _Cache, first_fit_addresses
from loadmaster.placement.strategies.registry import baseline, baseline_names
from loadmaster.placement.timing import time_moves


@pytest.mark.parametrize("name", baseline_names())
@given(seed=seeds, in_place=st.booleans(), share=st.floats(0.2, 1.0), uneven=st.booleans())
def test_baselines_are_valid_or_say_why_not(name, seed, in_place, share, uneven):
    sequence = random_sequence(seed, kernels=2 + seed % 9, tensors=1 + seed % 7, in_place=in_place)
    limits = even(sequence, int(sequence.peak_bytes * share))
    if uneven:
        limits[seed % len(limits)] //= 2
    try:
        result = baseline(name, sequence, limits)
    except CapacityError:
        assert name != "all-fast"
        return
    except PlacementError:
        assert name == "2lm"
        return
    if result.placement is None:
        assert name == "2lm"
        return
    assert holds(sequence, result.placement)
    assert time_moves(sequence, result.placement).total == result.seconds
    occupied = fast_bytes(sequence, result.placement)
    assert result.peak_fast == occupied.max()
    if name != "all-fast":
        assert (occupied <= limits).all()


@pytest.mark.parametrize(
    "name", [name for name in baseline_names() if name not in ("all-slow", "2lm")]
)
def test_with_room_for_everything_nothing_is_lost(name):
    for seed in range(20):
        sequence = random_sequence(seed, in_place=False, choices=False)
        result = baseline(name, sequence, even(sequence, sequence.peak_bytes))
        assert result.seconds == pytest.approx(sequence.seconds(False))


@pytest.mark.parametrize("name", ["largest-first", "intervals"])
def test_overlapping_strategies_hide_copies_where_the_link_is_fast(name):
    sequence = training(8, in_place=False, bandwidth=8.0)
    limits = even(sequence, 5 * 8)
    result = baseline(name, sequence, limits)
    assert result.seconds == 16.0
    assert result.moved_bytes > 0
    assert baseline("lru", sequence, limits).seconds > 16.0


@pytest.mark.parametrize(
    ("room", "names", "words"),
    [
        (16, "all-slow first-touch largest-first", "{} does not fit.*kernel '[fb][0-9]'"),
        (15, "first-touch largest-first lru intervals", "kernel 'f1' needs 16 bytes.*limit is 15"),
    ],
)
def test_what_does_not_fit_is_said(room, names, words):
    sequence = training(4, in_place=False, bandwidth=8.0)
    for name in names.split():
        with pytest.raises(CapacityError, match=words.replace("{}", name)):
            baseline(name, sequence, even(sequence, room))


def test_first_touch_reuses_memory_and_never_moves():
    sequence = training(4, in_place=True, bandwidth=8.0)
    result = baseline("first-touch", sequence, even(sequence, 16))
    assert result.moved_bytes == 0
    assert {stay.tensor for stay in result.placement.stays} == {0, 1}


def test_a_hardware_cache_writes_dirty_blocks_back():
    # Four tensors of a block each in a cache of two lines: 0 and 2 conflict, 1 and 3 do. Written
    # forward, read backward.
    sequence = training(4, in_place=True, bandwidth=8.0)
    sequence = replace(
        sequence, tensors=tuple(t._replace(bytes=8) for t in sequence.tensors), alignment=8
    )
    result = baseline("2lm", sequence, even(sequence, 16))
    roomy = baseline("2lm", sequence, even(sequence, 32))
    assert roomy.moved_bytes == 0
    assert roomy.seconds == 8.0
    assert baseline("2lm", sequence, even(sequence, 2**61)).seconds == 8.0
    # Forward: each write displaces a line (4 fills), of which x2 and x3 displace dirty ones;
    # backward: x1 and x0 are fetched, x2 and x3 written back; the warm cache then holds clean x0
    # and x1, which the next step hits: 2 fills less.
    assert result.moved_bytes == 8 * (2 + 2 + 2 + 2)
    with pytest.raises(PlacementError, match="in place"):
        baseline("2lm", training(4, in_place=False, bandwidth=8.0), np.full(8, 16))


def test_tensors_that_no_kernel_uses_have_no_place_in_a_cache():
    sequence = sequence_of(
        "unused 99999999999999 weight, x 8 input", kernel("k", operand(1, "r", 2.0))
    )
    assert baseline("2lm", sequence, even(sequence, 2**49)).moved_bytes == 0


@pytest.mark.parametrize("name", ["all-slow", "first-touch", "lru"])
def test_a_combination_of_places_that_was_not_possible_is_said(name):
    """Each operand may be in the slow memory, but not both at once."""
    table = ((1.0, 2.0, 2.0, math.inf),)
    both = kernel("both", operand(0, "r"), operand(1, "w"), measured=table)
    sequence = sequence_of("w 8 weight, y 8 output", both)
    with pytest.raises(CapacityError, match="kernel 'both' cannot run with its operands"):
        baseline(name, sequence, even(sequence, 0))
    rivals = {rival.name: rival for rival in place(sequence, 8).rivals}
    assert rivals["all-slow"].makespan is None
    assert "cannot run" in rivals["all-slow"].reason


def test_addresses_of_tensors_that_live_at_once_do_not_overlap():
    for seed in range(30):
        sequence = random_sequence(seed, kernels=10, tensors=12)
        address = first_fit_addresses(sequence, sequence.sizes, 2)
        columns = *sequence.lifetimes.T, -(-sequence.sizes // 2)
        assert verify_buffers(problem_of(columns), address) == ()


def test_weights_that_fit_stay_for_lru_and_an_updated_one_is_kept():
    sequence = sequence_of(
        "w 4 weight, g 4",
        kernel("use", operand(0, "r", math.inf), operand(1, "w", math.inf)),
        kernel("update", operand(0, "rw", math.inf), operand(1, "r", math.inf)),
    )
    assert baseline("lru", sequence, np.full(2, 8)).moved_bytes == 0


def test_an_unknown_name_is_refused():
    sequence = random_sequence(0)
    with pytest.raises(PlacementError, match="no baseline 'clock': choose one of all-fast"):
        baseline("clock", sequence, np.zeros(6, dtype=np.int64))


@given(seeds, st.integers(1, 9))
def test_the_cache_of_memory_mode_does_what_one_block_at_a_time_does(seed, lines):
    rng = random.Random(seed)
    cache, holds, dirty = _Cache(lines), [-1] * lines, [False] * lines
    for _ in range(20):
        first, blocks, write = rng.randint(0, 20), rng.randint(0, 25), rng.random() < 0.5
        missed = displaced = 0
        for block in range(first, first + blocks):
            line = block % lines
            if holds[line] != block:
                missed, displaced = missed + 1, displaced + dirty[line]
                holds[line], dirty[line] = block, False
            dirty[line] |= write
        assert cache.touch(first, blocks, write) == (missed, displaced)
        assert (cache.holds.tolist(), cache.dirty.tolist()) == (holds, dirty)
