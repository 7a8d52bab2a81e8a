"""TelaMalloc: packings hold, whatever is switched off; and whom the propagator blames is to
blame."""

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import records
from tests.support.tilings import tight

import loadmaster as lm
from loadmaster.allocation.strategies.telamalloc import FEATURES, TelaMalloc, TelaMallocOptions


@pytest.mark.parametrize("off", [(), *((name,) for name in FEATURES)])
@given(buffers=records(), capacity=st.integers(0, 30))
@fuzz(30)
def test_packings_hold_and_where_there_is_room_for_all_there_is_one(off, buffers, capacity):
    problem = lm.problem_of(buffers)
    ample = sum(b.size + b.alignment for b in buffers) + max(
        (b.offset or 0 for b in buffers), default=0
    )
    for room in (capacity, ample):
        options = replace(TelaMallocOptions(), **dict.fromkeys(off, False))
        offsets = TelaMalloc(problem, room, options).run()
        assert offsets is not None or room < ample
        assert offsets is None or lm.verify_buffers(problem, offsets, room) == ()


@pytest.mark.parametrize(
    "off", [(), *((name,) for name in FEATURES), FEATURES], ids=lambda off: "-".join(off) or "none"
)
def test_tight_sets_are_packed_or_given_up_within_the_steps(off):
    problem = tight(40, 1)
    search = TelaMalloc(
        problem, 2**16, replace(TelaMallocOptions(steps=3000), **dict.fromkeys(off, False))
    )
    offsets = search.run()
    assert 40 <= search.counts.steps <= 3000
    if offsets is not None:
        assert lm.verify_buffers(problem, offsets, 2**16) == ()
    assert (offsets is not None) or off


def test_backtracks_are_counted_and_jumps_are_major():
    problem = tight(100, 2)
    counts = {}
    for jump in (True, False):
        search = TelaMalloc(problem, 2**16, TelaMallocOptions(jump=jump, unstick=False, steps=2000))
        search.run()
        counts[jump] = search.counts
    assert counts[True].minor_backtracks > 0
    assert counts[True].major_backtracks > 0
    assert counts[False].major_backtracks == 0


def run_interrupted(search):
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    search.run(600.0)


@pytest.mark.parametrize("strikes", ["limit", "signal"])
def test_a_time_limit_and_a_signal_stop_a_search(strikes):
    """One byte less than the load bound is out of reach, and takes for ever to try with propagator
    and jumps off."""
    search = TelaMalloc(
        tight(60, 4),
        2**16 - 1,
        TelaMallocOptions(propagate=False, jump=False, unstick=False, steps=10**9),
    )
    if strikes == "limit":
        assert search.run(0.2) is None
    else:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                run_interrupted(search)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert search.counts.steps < 10**9
