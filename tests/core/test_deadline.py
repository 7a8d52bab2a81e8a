"""The one clock: seconds left, whether a deadline has come, and parts of the time that is left."""

import time

import pytest

from loadmaster.core.progress import NO_DEADLINE, Deadline


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
    assert NO_DEADLINE.before(3.0) is NO_DEADLINE
