"""Buffers with gaps of which each two are alive together at some instant: what they need, though
the load at no instant says so."""

from itertools import combinations

from hypothesis import event, given
from tests.support.fuzzing import fuzz
from tests.support.problems import clash, lowest_peak, records

import loadmaster as lm
from loadmaster.allocation.native import lower_bound, packing_problem
from loadmaster.allocation.problem import Load
from loadmaster.allocation.rules import problem_of


def three():
    """Two at every instant, and each two at some."""
    return [
        lm.Buffer("a", 0, 2, 5),
        lm.Buffer.during("b", [(0, 1), (2, 3)], 6),
        lm.Buffer("c", 1, 3, 7),
    ]


def test_what_is_alive_two_by_two_is_the_proof():
    answer = lm.allocate(three())
    assert packing_problem(problem_of(three())).load_bound().bytes == 13
    assert (answer.status, answer.peak, answer.certificate) == (
        "optimal",
        18,
        Load(18, None, ("a", "b", "c")),
    )


def test_what_is_alive_two_by_two_is_the_reason():
    reason = lm.allocate([*three(), lm.Buffer("other", 0, 3, 1)], 18).certificate
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
    problem = problem_of(buffers)
    by_load, bound = packing_problem(problem).load_bound(), lower_bound(problem)
    assert by_load.bytes <= bound.bytes <= lowest_peak(buffers)
    event(f"by pairs: {bound.instant is None}")
    if bound.instant is None:
        named = [buffer for buffer in buffers if buffer.id in bound.buffers]
        assert sum(buffer.size for buffer in named) == bound.bytes > by_load.bytes
        assert all(clash(one, 0, other, 0) for one, other in combinations(named, 2))
