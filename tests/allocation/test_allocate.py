"""Every strategy against brute force and against each other: valid, and optimal or infeasible only
where that is true."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import (
    answer_holds,
    buffers_of,
    clash,
    crowd,
    lived,
    lowest_peak,
    orderly,
    records,
    rivals,
)
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.allocation.native import lower_bound
from loadmaster.allocation.problem import EXHAUSTED, Load
from loadmaster.allocation.strategies.registry import STRATEGIES

EVERY = [pytest.param(name, marks=rivals if name == "cp-sat" else ()) for name in STRATEGIES.names]
plain = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=10
)


@pytest.mark.parametrize("name", ["auto", "exact"])
@given(records())
@fuzz(150)
@pytest.mark.slow
def test_proofs_agree_with_brute_force(name, buffers):
    answer = lm.allocate(buffers, strategy=name)
    answer_holds(buffers, answer)
    best = lowest_peak(buffers)
    assert (
        answer.peak == best
        if answer.status == "optimal"
        else not orderly(buffers) and answer.peak >= best
    )
    assert (
        answer.certificate == EXHAUSTED
        or isinstance(answer.certificate, Load)
        or answer.status == "feasible"
    )


@given(records(), st.integers(0, 24))
@fuzz(150)
@pytest.mark.slow
def test_fit_is_decided_and_infeasibility_is_explained(buffers, capacity):
    answer = lm.allocate(buffers, capacity)
    answer_holds(buffers, answer)
    best = lowest_peak(buffers)
    if answer.status == "unknown":
        assert not orderly(buffers)
        return
    assert (answer.offsets is not None) == (best <= capacity)
    if best <= capacity:
        return
    reason = answer.certificate
    assert answer.status == "infeasible"
    assert reason.required - reason.available == reason.excess > 0
    assert capacity < reason.required <= best
    core = [buffer for buffer in buffers if buffer.id in reason.buffers]
    assert lowest_peak(core) > capacity
    if reason.irreducible:
        assert all(lowest_peak([b for b in core if b is not one]) <= capacity for one in core)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
@given(plain)
@fuzz(25)
def test_every_strategy_makes_valid_packings_that_auto_is_never_worse_than(name, rows):
    buffers = lived(rows)
    answer = lm.allocate(buffers, strategy=name)
    answer_holds(buffers, answer)
    assert lm.allocate(buffers).peak <= answer.peak


@pytest.mark.parametrize("seed", [10, 11])
def test_auto_is_never_worse_with_little_effort_where_search_proves_nothing(seed):
    columns = crowd(40, 40, 13, 50, seed)
    aliases = [[(2 * group, 0), (2 * group + 1, 8)] for group in range(6)]
    auto, *others = (
        lm.allocate(columns, strategy=name, effort="quick", aliases=aliases).peak
        for name in ("auto", "telamalloc", "local-search", "exact")
    )
    assert auto <= min(others)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_answer(name):
    buffers = crowd(30, 40, 15, 50, seed=1)
    first, second = (lm.allocate(buffers, strategy=name, seed=3) for _ in range(2))
    assert first.offsets.tolist() == second.offsets.tolist()
    assert not first.interrupted


def test_every_strategy_honours_in_place_pairs():
    buffers = buffers_of("a 0 9 4, b 0 9 4")
    for strategy, peak in (("exact", 4), ("telamalloc", 4), ("greedy", 8)):
        assert lm.allocate(buffers, strategy=strategy, in_place=[(0, 1)]).peak == peak
    with pytest.raises(lm.AllocationError, match=r"no strategy 'best': did you mean best-fit"):
        lm.allocate(buffers, strategy="best")


def test_a_time_limit_of_nothing_still_gives_a_packing_and_says_that_it_stopped():
    answer = lm.allocate(crowd(300, 400, 150, 5000, step=7), time_limit=0.0)
    assert answer.offsets is not None
    assert answer.interrupted or answer.status == "optimal"


def test_aligned_buffers_that_fit_are_not_called_infeasible():
    """Found by fuzzing: the support rule cuts off every packing of these within 22 bytes."""
    buffers = buffers_of(
        "b0 5 10 9 alignment=4, b1 6 7 4, b2 4 6 2 alignment=8, b3 4 6 3, b4 7 8 5, b5 4 6 4,"
        " b6 2 6 2 alignment=8"
    )
    assert lm.allocate(buffers, 22).status == "feasible"
    assert lm.allocate(buffers).peak == 22


@pytest.mark.parametrize(
    ("lifetimes", "alive"),
    cases("""
        0-10 2-3 | 0-10
        8-9 2-3 0-5 | 0-5 8-9
        0-4 2-6 6-7 9-9 | 0-7
        3-3 |
        |
    """),
)
def test_a_buffer_is_alive_during_all_of_its_lifetimes(lifetimes, alive):
    spans = [tuple(map(int, span.split("-"))) for span in lifetimes.split()]
    parts = lm.problem_of([lm.Buffer.during("b", spans, 4)]).parts
    assert [f"{a}-{b}" for a, b in zip(parts.lower, parts.upper, strict=True)] == alive.split()


@pytest.mark.parametrize("strategy", ["auto", "local-search"])
@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_a_seed_may_be_a_number_of_numpy(strategy, kind):
    buffers = buffers_of("a 0 2 4, b 1 3 4")
    one = lm.allocate(buffers, strategy=strategy, seed=kind(3), threads=kind(1))
    banks = lm.allocate_banks(buffers, [lm.Bank("m", 8)], strategy=strategy, seed=kind(3))
    assert json.loads(json.dumps(one.as_json(2)))["seed"] == 3
    assert json.loads(json.dumps(banks.as_json(2)))["seed"] == 3


# Buffers with gaps of which each two are alive together at some instant.


THREE = buffers_of("a 0 2 5, b 0 3 6 gaps=1-2, c 1 3 7")
"""Two at every instant, and each two at some."""


def fullest_instant(problem):
    """Most bytes in use at once."""
    _, lower, upper, low, high = problem.parts
    return max((int((high - low)[(lower <= t) & (t < upper)].sum()) for t in lower), default=0)


def test_what_is_alive_two_by_two_is_the_proof():
    answer = lm.allocate(THREE)
    assert fullest_instant(lm.problem_of(THREE)) == 13
    assert (answer.status, answer.peak, answer.certificate) == (
        "optimal",
        18,
        Load(18, None, ("a", "b", "c")),
    )


def test_what_is_alive_two_by_two_is_the_reason():
    reason = lm.allocate(THREE + buffers_of("other 0 3 1"), 18).certificate
    assert (reason.kind, reason.required, reason.excess, reason.instant) == (
        "fragmentation",
        19,
        1,
        None,
    )
    assert reason.irreducible
    assert reason.buffers == ("a", "b", "c", "other")


@given(records())
@fuzz(40)
def test_every_two_of_them_clash_at_one_address_and_no_packing_needs_less(buffers):
    problem = lm.problem_of(buffers)
    by_load, bound = fullest_instant(problem), lower_bound(problem)
    assert by_load <= bound.bytes <= lowest_peak(buffers)
    event(f"by pairs: {bound.instant is None}")
    if bound.instant is None:
        named = [buffer for buffer in buffers if buffer.id in bound.buffers]
        assert sum(buffer.size for buffer in named) == bound.bytes > by_load
        assert all(clash(one, 0, other, 0) for one, other in combinations(named, 2))


def test_an_array_has_a_row_for_each_buffer_and_no_other_shape():
    """Three rows would be read as buffers, and other numbers of rows as columns."""
    rows = np.array([[0, 4, 8], [2, 6, 8], [5, 9, 4], [8, 9, 1]])
    for count in range(5):
        assert lm.allocate(rows[:count]).peak == lm.allocate(tuple(rows[:count].T)).peak
    for count in (1, 2, 4):
        with pytest.raises(lm.AllocationError, match=r"one array of shape \(n, 3\)"):
            lm.allocate(rows[:count].T)
