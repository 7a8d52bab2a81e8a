"""Static and synchronous placement: legal, never better than the bound, and as good as trying everything."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import CapacityError
from loadmaster.placement import place_between_kernels
from loadmaster.tensor_placement import Mode
from placement_oracles import optimum, sequences, walk


@settings(max_examples=300, deadline=None)
@given(sequences(), st.lists(st.integers(0, 16), min_size=5, max_size=5), st.sampled_from([Mode.SYNC, Mode.STATIC]))
def test_small_placements_lie_between_bound_and_optimum(sequence, room, mode) -> None:
    limits = np.array(room[: len(sequence.kernels)], dtype=np.int64)
    best = optimum(sequence, limits, mode is Mode.SYNC)
    try:
        found = place_between_kernels(sequence, limits, mode)
    except CapacityError:
        assert best == math.inf
        return
    seconds = walk(sequence, limits, found.placement)
    assert found.seconds == pytest.approx(seconds, rel=1e-12, abs=1e-12)
    assert found.lower_bound <= best * (1 + 1e-12)
    assert seconds >= best - 1e-9
