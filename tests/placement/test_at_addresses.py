"""Copies whose times follow from addresses: placements hold to the byte, and take as long as the
schedule says."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.sequences import random_sequence

from loadmaster.allocation.allocate import allocate
from loadmaster.core.effort import Effort
from loadmaster.core.errors import CapacityError
from loadmaster.core.progress import NO_DEADLINE
from loadmaster.placement.autotm.at_addresses import place_at_addresses
from loadmaster.placement.autotm.engine import place_by_program
from loadmaster.placement.decisions import Mode
from loadmaster.placement.place import place
from loadmaster.placement.timing import time_moves
from loadmaster.placement.verify import broken_placement_rules, verify_placement


# The end of the memory is not aligned: the padding of what lies there counts.
@example(seed=10, tensors=4, kernels=7, in_place=True, share=0.25, refused=0)
# The solver finds no optimum once a row for an interval is added.
@example(seed=6, tensors=6, kernels=10, in_place=True, share=0.7984208462246241, refused=2)
@fuzz(150)
@given(
    seed=st.integers(0, 10**9),
    tensors=st.integers(1, 12),
    kernels=st.integers(1, 16),
    in_place=st.booleans(),
    share=st.floats(0.2, 1.0),
    refused=st.integers(0, 2),
)
def test_placements_at_addresses_hold(seed, tensors, kernels, in_place, share, refused):
    sequence = random_sequence(seed, kernels=kernels, tensors=tensors, in_place=in_place)
    fast = int(sequence.peak_bytes * share)
    limits = np.full(kernels, fast)
    try:
        effort = Effort.NORMAL.divided(40_000)
        counted = place_by_program(sequence, limits, Mode.ASYNC, seed=seed, effort=effort)
    except CapacityError:
        return
    calls = iter(range(10))

    def pack(lower, upper, size):
        """Refuse the longest copies, so that shorter ones are tried too."""
        return (
            allocate((lower, upper, size), fast, alignment=sequence.alignment).offsets
            if next(calls) >= refused
            else None
        )

    answers = []
    for _ in range(2):
        calls = iter(range(10))
        answers.append(place_at_addresses(counted, fast, pack, counted.seconds, NO_DEADLINE))
    found, again = answers
    assert (found is None) == (again is None)
    if found is None or again is None:
        return
    assert (
        list(
            broken_placement_rules(
                sequence, found.placement, fast, Mode.ASYNC, found.offsets.tolist()
            )
        )
        == []
    )
    assert time_moves(sequence, found.placement).total == pytest.approx(found.seconds, rel=1e-9)
    assert found.placement == again.placement
    assert found.offsets.tolist() == again.offsets.tolist()


def test_copies_give_way_to_addresses_instead_of_limits():
    """Packed as it was counted, the first placement does not fit; with limits lowered until one
    does, the answer took 40.2 s."""
    sequence = random_sequence(5, kernels=30, tensors=24, in_place=False, choices=False)
    plan = place(sequence, "40%", mode="async", strategy="program")
    assert plan.rounds == 1
    assert plan.seconds < 40
    assert verify_placement(plan) == ()
