"""Placements as users get them: packed, checked, never below the bound, never worse than what is simpler."""

import itertools
import math

import numpy as np
import pytest
from hand_sequence import step
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import random_sequence

from loadmaster.errors import CapacityError, PlacementError
from loadmaster.fast_memory_sizing import slowdown_curve, smallest_fast
from loadmaster.memory_plan import MemoryPlan
from loadmaster.placer import place
from loadmaster.verification.tensor_placement import broken_placement_rules

MODES = ("static", "sync")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(MODES), st.floats(0.2, 1.1), st.booleans())
def test_placements_hold_and_beat_what_is_simpler(seed: int, mode: str, share: float, in_place: bool) -> None:
    sequence = random_sequence(seed, kernels=8, tensors=6, in_place=in_place)
    limit = int(sequence.peak_bytes * share)
    try:
        plan = place(sequence, limit, mode=mode)
    except CapacityError:
        return
    assert list(broken_placement_rules(sequence, plan.placement, limit, plan.mode, plan.offsets)) == []
    assert plan.lower_bound <= plan.seconds
    assert plan.peak_fast <= limit
    for rival in plan.rivals:
        allowed = rival.placement is not None and not list(broken_placement_rules(sequence, rival.placement, limit, plan.mode))
        if rival.name not in ("all-fast", "2lm") and rival.seconds is not None and allowed and plan.rounds == 1:
            assert plan.seconds <= rival.seconds * (1 + 1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_with_room_for_everything_nothing_is_slower_than_all_fast(mode: str) -> None:
    sequence = step()
    plan = place(sequence, 1000, mode=mode)
    assert plan.seconds <= plan.all_fast_seconds
    assert plan.gap <= 0.02


def test_without_room_everything_is_slow() -> None:
    plan = place(step(), 5, mode="sync")
    assert plan.seconds == pytest.approx(plan.all_slow_seconds)
    assert plan.placement.stays == ()


def test_a_limit_too_small_for_one_kernel_names_it_and_its_tensors() -> None:
    with pytest.raises(CapacityError) as caught:
        place(step(slow=math.inf), 20, mode="sync")
    assert "update" in str(caught.value)
    assert "'w'" in str(caught.value)


def test_more_room_never_hurts_a_curve_and_the_bound_stays_below() -> None:
    sequence = random_sequence(7, kernels=12, tensors=9)
    points = slowdown_curve(sequence, [sequence.peak_bytes * share // 10 for share in range(11)], mode="sync")
    plans = [plan for plan in points if isinstance(plan, MemoryPlan)]
    assert len(plans) > 5
    assert all(later.seconds <= earlier.seconds for earlier, later in itertools.pairwise(plans))
    assert all(plan.lower_bound <= plan.seconds for plan in plans)


def test_the_smallest_fast_memory_meets_the_slowdown_and_less_is_ruled_out_by_the_bound() -> None:
    sequence = random_sequence(3, kernels=12, tensors=9)
    found = smallest_fast(sequence, 1.2, mode="sync")
    assert found.plan.slowdown <= 1.2
    assert found.too_small is None or found.too_small < found.plan.limit
    if found.too_small is not None:
        assert place(sequence, found.too_small, mode="sync").slowdown > 1.2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "lazy"}, ["mode 'lazy'", "static, sync, async"]),
        ({"strategy": "magic"}, ["strategy 'magic'", "first-touch"]),
        ({"gap": float("nan")}, ["gap", "0.01"]),
        ({"gap": -0.1}, ["gap"]),
        ({"time_limit": 0.0}, ["time limit"]),
        ({"seed": -1}, ["seed"]),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(PlacementError) as caught:
        place(step(), 100, **options)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words)


def test_the_same_seed_gives_the_same_answer() -> None:
    sequence = random_sequence(11, kernels=14, tensors=10)
    one, two = (place(sequence, sequence.peak_bytes // 2, mode="sync", seed=3) for _ in range(2))
    assert one.placement == two.placement
    assert one.offsets == two.offsets
    assert np.array_equal(one.prices, two.prices)
