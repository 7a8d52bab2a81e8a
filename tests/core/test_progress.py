"""What work says of itself, how much time it has, and what it tells the garbage collector."""

import gc
import time

import pytest

from loadmaster.core.progress import NO_DEADLINE, Deadline, gc_relaxed, no_progress, part_of


def test_equal_parts_make_a_whole():
    heard = []
    for number in range(4):
        report = part_of(lambda *said: heard.append(said), "mapping", number, 4)
        report("solving", 0.0)
        report("packing", 1.0)
    assert {stage for stage, _ in heard} == {"mapping"}
    assert [share for _, share in heard] == [0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0]


def test_nobody_need_listen():
    assert no_progress("mapping", 0.5) is None


# The one clock.


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("now", "left", "spent"), [(100, 8.0, 0.0), (102, 6.0, 0.25), (108, 0.0, 1.0), (200, 0.0, 1.0)]
)
def test_time_runs_out(clock, now, left, spent):
    deadline = Deadline.within(8.0)
    clock[0] = now
    assert (deadline.left(), deadline.spent(), deadline.passed()) == (left, spent, left == 0)


def test_a_part_is_of_the_time_left(clock):
    deadline = Deadline.within(8.0)
    clock[0] = 104.0
    part = deadline.part(0.25)
    assert (part.left(), part.spent()) == (1.0, 0.0)
    clock[0] = 109.0
    assert deadline.part(0.5).passed()


def test_time_is_kept_for_what_comes_after_but_no_more_than_three_quarters(clock):
    deadline = Deadline.within(8.0)
    assert (deadline.before(3.0).left(), deadline.before(100.0).left()) == (5.0, 2.0)
    assert NO_DEADLINE.before(3.0) == NO_DEADLINE


# The garbage collector is told what it was told before.


@pytest.mark.parametrize("before", [700, 0, 10**6])
def test_what_was_set_before_holds_afterwards(before):
    found = gc.get_threshold()
    gc.set_threshold(before, *found[1:])
    try:
        with gc_relaxed():
            assert gc.get_threshold()[0] == (1_000_000 if before == 700 else before)
        assert gc.get_threshold()[0] == before
    finally:
        gc.set_threshold(*found)
