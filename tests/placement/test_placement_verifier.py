"""The verifier of tensor placements accepts what holds and names the rule that anything else
breaks."""

from dataclasses import replace

import pytest
from tests.support.hand_sequence import moves, stays, step
from tests.support.tables import cases

from loadmaster.placement.decisions import Mode, Stay, TensorPlacement, all_fast
from loadmaster.placement.verify import broken_placement_rules

STEP = step()
ALGORITHMS = (0,) * 5


def placed(fast, copies=""):
    return TensorPlacement(stays(fast), moves(copies), ALGORITHMS)


STAYS = "x 0-1, w 0-5, a 0-2, b 1-3, da 2-4, y 4-5"
BACK = f"{STAYS}, a 3-4"
OUT_AND_IN = placed(BACK, "a out 2-2, a in 3-3")
OVERLAPPED = placed(f"{STAYS}, a 2-4", "a out 1-2, a in 2-3")
FETCHED_WEIGHT = placed("w 0-1, w 3-4", "w in 0-0, w in 3-3, w out 4-4")
ALL_SLOW = placed("")


def rules(placement, mode=Mode.SYNC, limit=1000, sequence=STEP, offsets=None):
    return {rule for rule, _ in broken_placement_rules(sequence, placement, limit, mode, offsets)}


@pytest.mark.parametrize("placement", [OUT_AND_IN, FETCHED_WEIGHT, all_fast(STEP), ALL_SLOW])
def test_placements_that_move_between_kernels_hold(placement):
    assert rules(placement) == set()


def test_copies_that_overlap_hold_where_they_may():
    assert rules(OVERLAPPED, Mode.ASYNC) == set()
    assert rules(OVERLAPPED) == {"mode"}


def test_nothing_moves_in_static_mode():
    assert rules(all_fast(STEP), Mode.STATIC) == set()
    assert rules(OUT_AND_IN, Mode.STATIC) == {"mode"}


def test_the_limit_holds_to_the_byte_and_counts_workspace():
    # w, a, da and the workspace of 5 while the weight is updated; w, a and b before.
    assert rules(OUT_AND_IN, limit=35) == set()
    assert rules(OUT_AND_IN, limit=34) == {"limit"}


@pytest.mark.parametrize(
    ("fast", "copies", "broken"),
    cases(f"""
        {BACK} | a in 3-3 | copy
        {BACK} | a out 2-2 | stay
        {BACK} | a out 3-3, a in 3-3 | copy
        {BACK} | a out 2-2, a in 3-3, a in 9-9 | move
        {BACK}, a 1-2 | a out 2-2, a in 3-3 | stay
        {BACK}, b 2-2 | a out 2-2, a in 3-3 | stay
        {STAYS} | | operand
        w 0-1, w 3-4 | w in 0-0, w in 3-3 | operand kept
        w 0-1, w 3-5 | w in 0-0, w in 3-3 | step
    """),
)
def test_what_does_not_hold_is_named(fast, copies, broken):
    assert rules(placed(fast, copies)) == set(broken.split())


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"stays": (*OUT_AND_IN.stays, Stay(9, 1, 2))}, "stay"),
        ({"algorithms": (0, 0, 1, 0, 0)}, "algorithm"),
        ({"algorithms": ()}, "algorithm"),
    ],
)
def test_tensors_and_algorithms_that_there_are_not_are_named(changes, rule):
    assert rules(replace(OUT_AND_IN, **changes)) == {rule}


def test_overlapping_copies_must_not_race():
    late = replace(OVERLAPPED, moves=moves("a out 1-3, a in 2-3"))
    assert "copy" in rules(late, Mode.ASYNC)
    updated = placed("w 0-5", "w out 3-4")
    fetched_while_written = placed("w 2-5", "w in 2-4")
    assert rules(updated, Mode.ASYNC) == rules(fetched_while_written, Mode.ASYNC) == {"race"}


def test_a_stay_begins_with_one_copy():
    """Kernels would find the tensor after the first, and be timed as if after the second."""
    for end in (0, 1):
        twice = placed("w 0-1, w 3-4", f"w in 0-0, w in 0-{end}, w in 3-3, w out 4-4")
        assert rules(twice, Mode.ASYNC) == {"copy"}


def test_copies_are_listed_in_an_order_in_which_their_engine_can_make_them():
    swapped = replace(all_fast(STEP), moves=moves("a out 2-3, w out 1-2"))
    assert rules(replace(swapped, moves=swapped.moves[::-1]), Mode.ASYNC) == set()
    assert rules(swapped, Mode.ASYNC) == {"order"}
    between = placed("x 0-1, w 0-2, b 1-3", "b out 2-3, w in 0-1")
    assert rules(between, Mode.ASYNC) == set()
    shared = replace(STEP, link=replace(STEP.link, shared=True))
    assert rules(between, Mode.ASYNC, sequence=shared) == {"order"}


def test_kernels_that_need_fast_operands_get_them():
    strict = step(slow=float("inf"))
    assert rules(all_fast(strict), sequence=strict) == set()
    assert rules(FETCHED_WEIGHT, sequence=strict) == {"in-place"}


def test_addresses_are_apart_aligned_and_within_the_limit():
    few = placed("a 0-4, b 1-3")
    workspaces = (0, 0, 0, 20, 0)
    apart = 0, 10, *workspaces
    assert rules(few, limit=35, offsets=apart) == set()
    for offsets in ((0, 9, *workspaces), (0, 26, *workspaces), (0, 10, 0, 0, 0, 9, 0), (0, 10)):
        assert rules(few, limit=35, offsets=offsets) == {"address"}
    aligned = replace(STEP, alignment=4)
    assert rules(few, limit=35, offsets=apart, sequence=aligned) == {"address"}
