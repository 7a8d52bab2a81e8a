"""Networks that come again: how times are written, when jobs may start and are due, and what became
of every mini-batch."""

from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.job_tables import table_of
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.cli.commands.map import _priorities
from loadmaster.cli.options import TimingOptions
from loadmaster.core.errors import MappingError, UnitError
from loadmaster.cost.job_pool import JobPool
from loadmaster.mapping.network_timing import job_times_of, mini_batches_of
from loadmaster.workloads.job import MiniBatch, network_timings

NETWORKS = ("net", "aux")
TIMINGS = network_timings(NETWORKS, {"net": 4.0}, {"net": 3.0}, MappingError)


def pool():
    """Two mini-batches of a chain of two jobs and a side branch, then one job of another
    network."""
    after = ((), (0,), (0,), (), (3,), (3,), ())
    return JobPool(None, after, ("net",) * 6 + ("aux",), (0, 0, 0, 1, 1, 1, 0))


def ending(*ends):
    return SimpleNamespace(end=np.array(ends))


def test_figures_are_written_by_network():
    times = TimingOptions(["net=900us"], ["net=10ms", "a=b=1s"]).arguments(MappingError)
    assert times["periods"] == {"net": pytest.approx(0.01), "a=b": 1.0}
    assert times["deadlines"] == {"net": pytest.approx(0.0009)}
    assert _priorities(["aux=0", "net=2.5"]) == {"aux": 0.0, "net": 2.5}
    assert not any(TimingOptions().arguments(MappingError).values())
    assert not _priorities(None)


@pytest.mark.parametrize(
    "row",
    cases("""
        period | net
        period | =1ms
        deadline | net=1ms | net=2ms
        priority | net
        priority | net=high
        priority | net=-1
        priority | net=nan
        priority | net=inf
    """),
)
def test_what_does_not_read_so_is_refused(row):
    option, *texts = row
    told = r"--\w+ '.+': write NAME=[SX]|--priority '.+': write NAME=X with a number of at least 0"

    def read():
        times = {} if option == "priority" else {option: texts}
        TimingOptions(**times).arguments(MappingError)
        _priorities(texts if option == "priority" else None)

    with pytest.raises(MappingError, match=told):
        read()


@pytest.mark.parametrize("text", ["net=", "net=soon"])
def test_a_time_without_a_number_is_refused(text):
    with pytest.raises(UnitError, match="is not a time: write a number and a unit"):
        TimingOptions([text]).arguments(MappingError)


@pytest.mark.parametrize(
    ("periods", "deadlines", "message"),
    [
        ({"nett": 1.0}, {}, "period of 'nett': there is no such network: did you mean net"),
        ({}, {"nett": 1.0}, "deadline of 'nett': there is no such network: did you mean net"),
        ({"net": 0.0}, {}, "period of 'net': 0.0 s must be more than zero, and finite"),
        ({}, {"net": inf}, "deadline of 'net': inf s must be more than zero, and finite"),
    ],
)
def test_unknown_networks_and_times_that_are_none_are_refused(periods, deadlines, message):
    with pytest.raises(MappingError, match=message):
        network_timings(NETWORKS, periods, deadlines, MappingError)


def test_mini_batches_come_a_period_apart_and_only_last_jobs_are_due():
    release, due, weight = job_times_of(pool(), TIMINGS, {"net": 2.0})
    assert release.tolist() == [0, 0, 0, 4, 4, 4, 0]
    assert due.tolist() == [inf, 3, 3, inf, 7, 7, inf]
    assert weight.tolist() == [2, 2, 2, 2, 2, 2, 1]


def test_a_mini_batch_ends_with_its_last_job():
    assert mini_batches_of(pool(), TIMINGS, ending(1.0, 2.0, 3.0, 5.0, 8.0, 6.0, 9.0)) == (
        MiniBatch("net", 0, 0.0, 3.0, 3.0, False),
        MiniBatch("net", 1, 4.0, 8.0, 4.0, True),
        MiniBatch("aux", 0, 0.0, 9.0, 9.0, False),
    )


def test_a_mini_batch_that_ends_when_it_is_due_is_not_missed():
    timings = network_timings(NETWORKS, {"net": 3e-4}, {"net": 7.5e-5}, MappingError)
    costs = table_of(np.full((5, 1), 7.5e-5))
    tight = JobPool(costs, ((),) * 5, ("net",) * 5, tuple(range(5)))
    release, due, weight = job_times_of(tight, timings, {})
    mapping = lm.map_dependent_jobs(
        costs, 1e9, tight.after, release=release, due=due, weight=weight, samples=5
    )
    assert mapping.status == "optimal"
    assert not any(each.missed for each in mini_batches_of(tight, timings, mapping))
