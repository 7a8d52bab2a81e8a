"""Static and synchronous placement: legal, never better than the bound, and as good as trying
everything."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.placement_oracles import optimum, sequences
from tests.support.sequences import even, replayed

from loadmaster.core.errors import CapacityError
from loadmaster.placement.autotm.bound import Prices, lower_bound
from loadmaster.placement.autotm.engine import place_by_program
from loadmaster.placement.autotm.program import PlacementProgram
from loadmaster.placement.autotm.sequence_arrays import sequence_arrays
from loadmaster.placement.decisions import Mode
from loadmaster.placement.place import place
from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelSequence,
    Operand,
    StoredKind,
    StoredTensor,
)


@fuzz(150)
@given(
    sequences(),
    st.lists(st.integers(0, 16), min_size=5, max_size=5),
    st.sampled_from([Mode.SYNC, Mode.STATIC]),
)
@pytest.mark.slow
def test_small_placements_lie_between_bound_and_optimum(sequence, room, mode):
    limits = np.array(room[: len(sequence.kernels)], dtype=np.int64)
    best = optimum(sequence, limits, mode is Mode.SYNC)
    try:
        found = place_by_program(sequence, limits, mode)
    except CapacityError:
        assert best == math.inf
        return
    seconds = replayed(sequence, found.placement, mode, limits).total
    assert found.seconds == pytest.approx(seconds, rel=1e-12, abs=1e-12)
    assert found.lower_bound <= best * (1 + 1e-12)
    assert seconds >= best - 1e-9


@pytest.mark.parametrize("needed", [0, 1])
def test_tensors_that_stay_are_chosen_with_all_measured_kernels_in_mind(needed):
    tensors = tuple(StoredTensor(name, 1, StoredKind.INTERMEDIATE) for name in "ab")
    # The maker may leave either in the slow memory but not both; the reader needs one of them in
    # the fast memory.
    makes = tuple(Operand(t, read=False, write=True) for t in (0, 1))
    reads = (Operand(needed, read=True, write=False, slow_seconds=math.inf),)
    only = (Algorithm("a", 0.0, 0),)
    kernels = (
        Kernel("makes", "any", makes, only, ((0.0, 0.0, 0.0, math.inf),)),
        Kernel("reads", "any", reads, only),
    )
    sequence = KernelSequence("two", tensors, kernels, CopyLink(1.0, 1.0, 1.0, 1.0))
    limits = np.array([1, 1], dtype=np.int64)
    found = place_by_program(sequence, limits, Mode.STATIC)
    assert found.seconds == replayed(sequence, found.placement, Mode.STATIC, limits).total == 0.0


def two_that_go_together():
    """Two weights that one kernel uses in the same memory only, and of which the next needs the
    first to be fast."""
    tensors = tuple(StoredTensor(name, 4, StoredKind.WEIGHT) for name in "ab")
    only = (Algorithm("a", 0.0, 0),)
    both = (Operand(0, True, False), Operand(1, True, True))
    together = Kernel("together", "any", both, only, ((0.0, math.inf, math.inf, 1.0),))
    first = Kernel("first", "any", (Operand(0, True, True, slow_seconds=math.inf),), only)
    return KernelSequence("two", tensors, (together, first, together), CopyLink(1.0, 1.0, 1.0, 1.0))


def test_tensors_that_cannot_stay_anywhere_for_all_measured_kernels_are_refused_unless_they_move():
    sequence = two_that_go_together()
    with pytest.raises(
        CapacityError,
        match=(
            r"'together' cannot run .*\('a' in the fast one, 'b' in the slow one\).*let tensors"
            r" move"
        ),
    ):
        place_by_program(sequence, np.array([4, 4, 4], dtype=np.int64), Mode.STATIC)
    assert place(sequence, 8, mode="sync").seconds == 0.0


@fuzz(40)
@given(sequences(kernels=4, tensors=3), st.lists(st.integers(2, 16), min_size=4, max_size=4))
def test_all_forms_of_the_program_agree_with_trying_everything(sequence, room):
    limits = np.array(room[: len(sequence.kernels)], dtype=np.int64)
    best = optimum(sequence, limits, True)
    arrays = sequence_arrays(sequence, limits)
    for program in (PlacementProgram(arrays, True), PlacementProgram(arrays, True, apart=0)):
        relaxed, whole = program.model.solve(), program.model.solve(integers=program.integers)
        # No form excludes the best, and none has whole solutions that are better; that HiGHS finds
        # the best is not ours to promise.
        assert whole.infeasible == (best == math.inf)
        assert best == math.inf or not relaxed.infeasible
        if best < math.inf:
            assert relaxed.objective * program.second <= best * (1 + 1e-5) + 1e-6
            assert whole.objective * program.second >= best * (1 - 1e-5) - 1e-6


@given(sequences(), st.integers(4, 20), st.booleans(), st.randoms(use_true_random=False))
def test_bounds_hold_for_any_prices(sequence, room, moves, random):
    limits = even(sequence, room)
    arrays = sequence_arrays(sequence, limits)
    shares = np.array([[0.01 + random.random() for _ in range(3)] for _ in sequence.kernels])
    shares /= shares.sum(axis=1, keepdims=True)
    memory = np.array([random.choice([0.0, random.random()]) for _ in sequence.kernels])
    surcharge = np.array([random.uniform(-1, 2) for _ in arrays.kernel])
    noted = np.array([random.random() < 0.5 for _ in arrays.kernel], dtype=np.uint8)
    free = np.zeros(len(memory))
    prices = Prices(memory, shares, surcharge, noted, free, free)
    assert lower_bound(arrays, prices, moves) <= optimum(sequence, limits, moves) * (1 + 1e-12)


def test_a_kernel_that_cannot_run_is_named_with_what_it_needs():
    tensors = (
        StoredTensor("image", 700, StoredKind.INPUT),
        StoredTensor("result", 300, StoredKind.OUTPUT),
    )
    operands = (Operand(0, True, False, 1.0, math.inf), Operand(1, False, True, 1.0, math.inf))
    kernel = Kernel("conv", "conv", operands, (Algorithm("direct", 1.0, 24),))
    sequence = KernelSequence("one", tensors, (kernel,), CopyLink(1.0, 1.0, 1.0, 1.0))
    with pytest.raises(
        CapacityError,
        match=(
            r"'conv' needs 1024 bytes .* may take 1000: .*workspace of 24.*'image' \(700"
            r" bytes\).*allow 24 bytes more"
        ),
    ):
        place_by_program(sequence, np.array([1000]), Mode.SYNC)
    assert place_by_program(sequence, np.array([1024]), Mode.SYNC).seconds == 2.0
