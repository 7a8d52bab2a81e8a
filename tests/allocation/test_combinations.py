"""Every combination of demands: honoured, checked, and optimal as brute force says."""

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from tests.support.problems import demands, every_offset, fuzz, records

import loadmaster as lm
from loadmaster.allocation.rules import problem_of
from loadmaster.allocation.strategies.registry import NAMES
from loadmaster.core.errors import AllocationError

MOST = 40


@st.composite
def combined(draw, most: int = 5):
    buffers = draw(records(most=most))
    return buffers, draw(demands(len(buffers)))


def attempt(buffers, **options) -> tuple[lm.Allocation | None, str]:
    """The answer, or why there is none."""
    try:
        return lm.allocate(buffers, **options), ""
    except AllocationError as error:
        return None, str(error)


def claims_less(buffers, wanted) -> bool:
    """Gaps mean nothing without a clock: a buffer counts as whole."""
    return "conflicts" in wanted and "gaps" in problem_of(buffers).features


@given(combined())
@fuzz(150)
@pytest.mark.slow
def test_auto_honours_every_combination_and_proves_the_optimum(case) -> None:
    buffers, wanted = case
    best = every_offset(buffers, MOST, **wanted)
    answer, refusal = attempt(buffers, **wanted)
    if answer is None:
        assert "pinned" in refusal or "touches the reserved range" in refusal
        assert best is None
        return
    assert best is not None
    event(f"demands: {sorted(wanted)}")
    assert lm.verify_buffers(problem_of(buffers, **wanted), answer.offsets) == ()
    assert answer.lower_bound <= best <= answer.peak
    assert (answer.status == "optimal") == (answer.peak == answer.lower_bound)
    if not claims_less(buffers, wanted):
        assert (answer.status, answer.peak) == ("optimal", best)


@given(combined(), st.integers(0, 20))
@fuzz(100)
def test_fit_is_decided_under_every_combination(case, capacity: int) -> None:
    buffers, wanted = case
    best = every_offset(buffers, MOST, **wanted)
    assume(best is not None)
    answer = lm.allocate(buffers, capacity, **wanted)
    if answer.offsets is not None:
        assert lm.verify_buffers(problem_of(buffers, **wanted), answer.offsets, capacity) == ()
        assert best <= capacity
    elif answer.status == "infeasible":
        assert best > capacity
        # A reserved range at the end of the capacity leaves less than it.
        assert answer.certificate.available <= capacity
        assert answer.certificate.available < answer.certificate.required <= best
    else:
        assert claims_less(buffers, wanted)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cp-sat"])
@given(combined())
@fuzz(30)
def test_every_strategy_honours_a_combination_or_refuses_it_by_name(name: str, case) -> None:
    buffers, wanted = case
    answer, refusal = attempt(buffers, strategy=name, **wanted)
    if answer is None:
        assert f"strategy {name!r} cannot honour" in refusal or "pinned" in refusal or "touches the reserved range" in refusal
    elif answer.offsets is not None:
        assert lm.verify_buffers(problem_of(buffers, **wanted), answer.offsets) == ()
        assert answer.lower_bound <= answer.peak


def test_sharing_is_proven_where_the_load_does_not_say() -> None:
    """A pair that may share does not, because sharing would block the pin."""
    buffers = [lm.Buffer("a", 0, 4, 4), lm.Buffer("b", 3, 8, 4), lm.Buffer("c", 5, 9, 4, offset=0), lm.Buffer("d", 0, 2, 4, offset=4)]
    answer = lm.allocate(buffers, in_place=[(0, 1)])
    assert (answer.status, answer.peak) == ("optimal", 8)
    three = [lm.Buffer(name, 0, 4, size) for name, size in (("a", 5), ("b", 4), ("c", 3))]
    assert lm.allocate(three, in_place=[(0, 1), (1, 2)]).peak == 8
    assert lm.allocate(three, in_place=[(0, 1), (1, 2)]).status == "optimal"


def test_pairs_that_are_pinned_to_one_address_share_it() -> None:
    buffers = [lm.Buffer("a", 0, 4, 4, offset=0), lm.Buffer("b", 3, 8, 6, offset=0), lm.Buffer("c", 0, 8, 4)]
    answer = lm.allocate(buffers, in_place=[(0, 1)])
    assert (answer.status, answer.peak) == ("optimal", 10)
    with pytest.raises(AllocationError, match="pinned to 0: they overlap at instant 3"):
        lm.allocate(buffers)
    with pytest.raises(AllocationError, match="pinned to 0: they overlap: move one"):
        lm.allocate(buffers, conflicts=[(0, 1)])


def test_conflicts_of_two_cores_are_solved_exactly() -> None:
    """A cycle of five needs more than its heaviest clique."""
    buffers = [lm.Buffer(str(i), 0, 1, 2) for i in range(5)]
    answer = lm.allocate(buffers, conflicts=[(i, (i + 1) % 5) for i in range(5)])
    assert (answer.status, answer.peak) == ("optimal", 6)
    assert lm.allocate(buffers, 5, conflicts=[(i, (i + 1) % 5) for i in range(5)]).certificate.instant is None


@pytest.mark.slow
def test_thousands_of_conflicting_buffers_are_packed() -> None:
    random = np.random.default_rng(0)
    lower = np.concatenate([np.arange(500), np.arange(500)])
    core = np.repeat([0, 1], 500)
    upper = lower + random.integers(1, 20, 1000)
    size = random.integers(1, 100, 1000)
    one, other = np.triu_indices(1000, 1)
    together = (lower[one] < upper[other]) & (lower[other] < upper[one])
    conflicts = np.column_stack([one, other])[together | (core[one] != core[other])]
    answer = lm.allocate((lower, upper, size), conflicts=conflicts)
    assert answer.lower_bound <= answer.peak <= 1.2 * answer.lower_bound
