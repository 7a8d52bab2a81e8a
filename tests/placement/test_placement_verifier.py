"""The verifier of tensor placements accepts what holds and names the rule that anything else
breaks."""

from dataclasses import replace

import pytest
from tests.support.hand_sequence import DA, A, B, W, X, Y, step

from loadmaster.placement.decisions import Mode, Move, Stay, TensorPlacement, all_fast
from loadmaster.placement.verify import broken_placement_rules

STEP = step()
ALGORITHMS = (0,) * 5
STAYS = (
    *(Stay(X, 0, 1), Stay(W, 0, 5), Stay(A, 0, 2)),
    *(Stay(B, 1, 3), Stay(DA, 2, 4), Stay(Y, 4, 5)),
)
OUT_AND_IN = TensorPlacement(
    (*STAYS, Stay(A, 3, 4)), (Move(A, False, 2, 2), Move(A, True, 3, 3)), ALGORITHMS
)
OVERLAPPED = TensorPlacement(
    (*STAYS, Stay(A, 2, 4)), (Move(A, False, 1, 2), Move(A, True, 2, 3)), ALGORITHMS
)
FETCHED_WEIGHT = TensorPlacement(
    stays=(Stay(W, 0, 1), Stay(W, 3, 4)),
    moves=(Move(W, True, 0, 0), Move(W, True, 3, 3), Move(W, False, 4, 4)),
    algorithms=ALGORITHMS,
)

ALL_SLOW = TensorPlacement((), (), ALGORITHMS)


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
    ("broken", "rule"),
    [
        (replace(OUT_AND_IN, moves=OUT_AND_IN.moves[1:]), {"copy"}),
        (replace(OUT_AND_IN, moves=OUT_AND_IN.moves[:1]), {"stay"}),
        (replace(OUT_AND_IN, moves=(Move(A, False, 3, 3), Move(A, True, 3, 3))), {"copy"}),
        (replace(FETCHED_WEIGHT, moves=FETCHED_WEIGHT.moves[:2]), {"operand", "kept"}),
        (
            replace(
                FETCHED_WEIGHT, stays=(Stay(W, 0, 1), Stay(W, 3, 5)), moves=FETCHED_WEIGHT.moves[:2]
            ),
            {"step"},
        ),
        *(
            (replace(OUT_AND_IN, stays=(*OUT_AND_IN.stays, Stay(*more))), {"stay"})
            for more in ((A, 1, 2), (9, 1, 2), (B, 2, 2))
        ),
        (replace(OUT_AND_IN, moves=(*OUT_AND_IN.moves, Move(A, True, 9, 9))), {"move"}),
        (replace(OUT_AND_IN, algorithms=(0, 0, 1, 0, 0)), {"algorithm"}),
        (replace(OUT_AND_IN, algorithms=()), {"algorithm"}),
        (
            replace(
                all_fast(STEP),
                stays=(*(s for s in all_fast(STEP).stays if s.tensor != A), Stay(A, 0, 2)),
            ),
            {"operand"},
        ),
    ],
)
def test_what_does_not_hold_is_named(broken, rule):
    assert rules(broken) == rule


def test_overlapping_copies_must_not_race():
    late = replace(OVERLAPPED, moves=(Move(A, False, 1, 3), Move(A, True, 2, 3)))
    assert "copy" in rules(late, Mode.ASYNC)
    updated = TensorPlacement((Stay(W, 0, 5),), (Move(W, False, 3, 4),), ALGORITHMS)
    assert rules(updated, Mode.ASYNC) == {"race"}
    fetched_while_written = TensorPlacement((Stay(W, 2, 5),), (Move(W, True, 2, 4),), ALGORITHMS)
    assert rules(fetched_while_written, Mode.ASYNC) == {"race"}


def test_a_stay_begins_with_one_copy():
    """Kernels would find the tensor after the first, and be timed as if after the second."""
    first, *others = FETCHED_WEIGHT.moves
    for end in (0, 1):
        twice = replace(FETCHED_WEIGHT, moves=(first, Move(W, True, 0, end), *others))
        assert rules(twice, Mode.ASYNC) == {"copy"}


def test_copies_are_listed_in_an_order_in_which_their_engine_can_make_them():
    swapped = TensorPlacement(
        all_fast(STEP).stays, (Move(A, False, 2, 3), Move(W, False, 1, 2)), ALGORITHMS
    )
    assert rules(replace(swapped, moves=swapped.moves[::-1]), Mode.ASYNC) == set()
    assert rules(swapped, Mode.ASYNC) == {"order"}
    between = TensorPlacement(
        (Stay(X, 0, 1), Stay(W, 0, 2), Stay(B, 1, 3)),
        (Move(B, False, 2, 3), Move(W, True, 0, 1)),
        ALGORITHMS,
    )
    assert rules(between, Mode.ASYNC) == set()
    assert rules(
        between, Mode.ASYNC, sequence=replace(STEP, link=replace(STEP.link, shared=True))
    ) == {"order"}


def test_kernels_that_need_fast_operands_get_them():
    strict = step(slow=float("inf"))
    assert rules(all_fast(strict), sequence=strict) == set()
    assert rules(FETCHED_WEIGHT, sequence=strict) == {"in-place"}


def test_addresses_are_apart_aligned_and_within_the_limit():
    few = TensorPlacement((Stay(A, 0, 4), Stay(B, 1, 3)), (), ALGORITHMS)
    workspaces = (0, 0, 0, 20, 0)
    apart = 0, 10, *workspaces
    assert rules(few, limit=35, offsets=apart) == set()
    for offsets in ((0, 9, *workspaces), (0, 26, *workspaces), (0, 10, 0, 0, 0, 9, 0), (0, 10)):
        assert rules(few, limit=35, offsets=offsets) == {"address"}
    aligned = replace(STEP, alignment=4)
    assert rules(few, limit=35, offsets=apart, sequence=aligned) == {"address"}
