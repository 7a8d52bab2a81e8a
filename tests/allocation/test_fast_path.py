"""The quick way for small arrays gives the answers of the general way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import columns, lived

import loadmaster as lm
from loadmaster.allocation.problem import Load


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.integers(0, 9)), max_size=40),
    st.none() | st.integers(0, 60),
)
@fuzz(200)
def test_it_agrees_with_the_general_way(rows, capacity):
    problem = lm.problem_of(lived(rows))
    quick, general = lm.allocate(lived(rows), capacity), lm.allocate(problem, capacity)
    assert (quick.status == "infeasible") == (general.status == "infeasible")
    if capacity is None:
        assert (quick.status, quick.peak) == (general.status, general.peak)
    if quick.offsets is not None:
        assert lm.verify_buffers(problem, quick.offsets, capacity) == ()
    if isinstance(quick.certificate, Load):
        assert quick.certificate.bytes == quick.lower_bound


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((-1, 2, 3), "lower is -1"),
        ((3, 2, 3), "upper is 2, before lower"),
        ((0, 2, -3), "size is -3"),
        ((0, 2, 2**62), r"size is \d+, which is 2\^62"),
        ((0, 2, 2**61), "the sizes add up to"),
    ],
)
def test_what_is_malformed_is_refused_all_the_same(row, said):
    with pytest.raises(lm.AllocationError, match=said):
        lm.allocate(columns([row] * 2))
