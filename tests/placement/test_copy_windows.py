"""Windows of copies: ranges' minima and intervals in which too little is copied, against the
obvious loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.placement.autotm.bound import _least
from loadmaster.placement.autotm.program import broken_intervals


@given(seed=st.integers(0, 10**9), count=st.integers(1, 40))
def test_minima_of_ranges(seed, count):
    random = np.random.default_rng(seed)
    values = random.normal(size=count)
    begin, end = random.integers(0, count + 1, (2, 30))
    found = _least(values, begin, end)
    assert found.tolist() == [
        values[first:last].min(initial=np.inf) for first, last in zip(begin, end, strict=True)
    ]


@given(seed=st.integers(0, 10**9), kernels=st.integers(1, 12), copies=st.integers(0, 10))
def test_intervals_are_those_in_which_too_little_is_copied_and_the_worst_comes_first(
    seed, kernels, copies
):
    random = np.random.default_rng(seed)
    begin, end = np.sort(random.integers(0, kernels + 1, (2, copies)), axis=0)
    bytes_, moved, blocking = (
        random.random(copies),
        random.random(kernels) / 4,
        random.random(kernels + 1) / 8,
    )
    found = broken_intervals(begin, end, bytes_, moved, blocking, 1000)

    def missing(first, last):
        within = bytes_[(begin >= first) & (end <= last)].sum()
        return float(within - moved[first:last].sum() - blocking[first : last + 1].sum())

    every = {
        (first, last): missing(first, last)
        for first in range(kernels + 1)
        for last in range(first, kernels + 1)
    }
    broken = {interval for interval, bytes_missing in every.items() if bytes_missing > 1e-4}
    assert set(found) <= broken
    assert bool(found) == bool(broken)
    if found:
        assert every[found[0]] >= max(every.values()) - 1e-9
