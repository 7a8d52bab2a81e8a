"""Networks that come again: how timings are written, when jobs may start and are due, and what became of every mini-batch."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.core.errors import MappingError, UnitError
from loadmaster.cost.job_pool import JobPool
from loadmaster.mapping.network_timing import NetworkLatency, NetworkTiming, job_times_of, latencies, parse_timing


def pool() -> JobPool:
    """Two mini-batches of a chain of two jobs and a side branch, then one job of another network."""
    after = ((), (0,), (0,), (), (3,), (3,), ())
    analysis: Any = None
    return JobPool(analysis, after, ("net",) * 6 + ("aux",), (0, 0, 0, 1, 1, 1, 0))


def ending(*ends: float) -> Any:
    return SimpleNamespace(end=np.array(ends))


@pytest.mark.parametrize(
    ("text", "timing"),
    [
        ("net:period=10ms,deadline=12ms,priority=2", NetworkTiming("net", 0.01, 0.012, 2.0)),
        ("net:deadline=900us", NetworkTiming("net", 0.0, 0.0009, 1.0)),
        ("a:b:priority=0", NetworkTiming("a:b", 0.0, inf, 0.0)),
    ],
)
def test_each_field_may_be_left_out(text: str, timing: NetworkTiming) -> None:
    found = parse_timing(text)
    assert (found.network, found.priority, found.deadline) == (timing.network, timing.priority, pytest.approx(timing.deadline))
    assert found.period == pytest.approx(timing.period)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("net", "write NAME:period=10ms"),
        (":period=1ms", "write NAME:period=10ms"),
        ("net:", "write NAME:period=10ms"),
        ("net:period=", "write NAME:period=10ms"),
        ("net:often=1ms", "write NAME:period=10ms"),
        ("net:period=1ms,period=2ms", "write NAME:period=10ms"),
        ("net:priority=high", "priority 'high' is not a number"),
        ("net:priority=-1", "the priority is a number of at least 0"),
        ("net:priority=nan", "the priority is a number of at least 0"),
        ("net:priority=inf", "the priority is a number of at least 0"),
    ],
)
def test_what_does_not_read_so_is_refused(text: str, message: str) -> None:
    with pytest.raises(MappingError, match=message) as caught:
        parse_timing(text)
    assert str(caught.value).startswith(f"--timing {text!r}: ")


def test_mini_batches_come_a_period_apart_and_only_last_jobs_are_due() -> None:
    release, due, weight = job_times_of(pool(), [NetworkTiming("net", 4.0, 3.0, 2.0)])
    assert release.tolist() == [0, 0, 0, 4, 4, 4, 0]
    assert due.tolist() == [inf, 3, 3, inf, 7, 7, inf]
    assert weight.tolist() == [2, 2, 2, 2, 2, 2, 1]


def test_without_timings_everything_is_there_at_once_and_never_due() -> None:
    release, due, weight = job_times_of(pool(), [])
    assert not release.any()
    assert np.isinf(due).all()
    assert (weight == 1).all()


def test_a_mini_batch_ends_with_its_last_job() -> None:
    found = latencies(pool(), [NetworkTiming("net", 4.0, 3.0)], ending(1.0, 2.0, 3.0, 5.0, 8.0, 6.0, 9.0))
    assert found == (
        NetworkLatency("net", 0, 0.0, 3.0, 3.0, 3.0, False),
        NetworkLatency("net", 1, 4.0, 8.0, 4.0, 3.0, True),
        NetworkLatency("aux", 0, 0.0, 9.0, 9.0, None, False),
    )


def test_a_time_without_a_number_is_refused() -> None:
    with pytest.raises(UnitError, match="'soon' is not a time: write a number and a unit"):
        parse_timing("net:period=soon")


@pytest.mark.parametrize(
    ("timings", "message"),
    [
        ([NetworkTiming("nett")], "--timing: there is no network 'nett': .*net"),
        ([NetworkTiming("net"), NetworkTiming("net")], "--timing: network 'net' is named twice"),
    ],
)
def test_unknown_networks_and_repetitions_are_refused(timings: list[NetworkTiming], message: str) -> None:
    with pytest.raises(MappingError, match=message):
        job_times_of(pool(), timings)
    with pytest.raises(MappingError, match=message):
        latencies(pool(), timings, ending(*range(7)))
