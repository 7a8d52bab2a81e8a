"""Jobs that may be divided into pieces on several cores: the same work in every way, and a bound
that holds for all of them."""

from functools import cache

import numpy as np
import pytest
from tests.support.job_tables import table_of
from tests.support.needs import FIXTURES
from tests.support.nightly import by_night

import loadmaster as lm
from loadmaster.cost.divided_jobs import LeastWork
from loadmaster.mapping.divided_jobs import bound_of
from loadmaster.mapping.group import OBJECTIVES, group_of

BANDWIDTHS = (1e9, 64e9, 4e12)


@cache
def divided(bandwidth):
    return lm.divide_jobs(
        [str(FIXTURES / "ncf.onnx.gz")], lm.target("m3e-s2"), bandwidth, precision="int8", batch=256
    )


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
def test_every_way_to_divide_does_the_same_work(bandwidth):
    jobs = divided(bandwidth)
    assert len({int(way.analysis.flops.sum()) for way in jobs.ways}) == 1
    counts = [len(way.analysis.jobs) for way in jobs.ways]
    assert counts == sorted(counts)
    assert len(counts) > 1, "else nothing was divided"


@pytest.mark.parametrize("allocator", ["demand", "even"])
@pytest.mark.parametrize(
    ("objective", "strategy"), [("makespan", "herald"), ("energy", "random"), ("edp", "random")]
)
@pytest.mark.parametrize("bandwidth", [1e9, 4e12, *by_night(64e9)])
def test_the_bound_holds_for_every_way_to_divide(bandwidth, objective, strategy, allocator):
    """By the strategy that comes nearest to it."""
    jobs = divided(bandwidth)
    bound = bound_of(jobs.least, bandwidth, allocator, OBJECTIVES[objective])
    assert bound.score > 0
    for way in jobs.ways:
        options = {"objective": objective, "allocator": allocator, "strategy": strategy}
        found = lm.map_jobs(way.analysis, bandwidth, samples=20, **options)
        assert found.value >= bound.score * (1 - 1e-12)


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
def test_pieces_of_a_job_take_no_less_together_than_is_said(bandwidth):
    """On any one core: seconds, bytes and joules."""
    jobs = divided(bandwidth)
    least = jobs.least
    for way in jobs.ways:
        found = way.analysis
        for ours, theirs in (
            (least.latency, found.latency),
            (least.moved, found.latency * found.bandwidth),
            (least.energy, found.energy),
        ):
            assert (ours.sum(axis=0) <= theirs.sum(axis=0) * (1 + 1e-12)).all()


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
def test_a_mapping_of_pieces_is_no_worse_than_one_of_whole_jobs(bandwidth):
    jobs = divided(bandwidth)
    whole = lm.map_jobs(jobs.ways[0].analysis, bandwidth, samples=300)
    found = lm.map_divided_jobs(jobs, bandwidth, samples=300)
    assert found.lower_bound <= found.value <= whole.value
    assert found.lower_bound <= whole.lower_bound * (1 + 1e-12)
    if bandwidth == 4e12:
        assert found.makespan < whole.lower_bound, "few long jobs gain by being divided"


def test_a_job_list_stays_whole(tmp_path):
    rows = "K,C,Y,X,R,S,type\n64,32,14,14,3,3,1\n64,64,14,14,3,3,1\n"
    (tmp_path / "jobs.csv").write_text(rows)
    jobs = lm.divide_jobs([str(tmp_path / "jobs.csv")], lm.target("m3e-s2"), 1e9)
    assert [len(way.analysis.jobs) for way in jobs.ways] == [2]
    assert not jobs.least.divides.any()
    found = lm.map_divided_jobs(jobs, 1e9)
    plain = lm.map_jobs(jobs.ways[0].analysis, 1e9)
    assert found.makespan == plain.makespan
    assert found.lower_bound <= plain.lower_bound * (1 + 1e-12)


def test_one_job_that_divides_evenly_meets_its_bound():
    """Two alike cores and a job of ten seconds: five each, and no less; as long as bandwidth
    allows."""
    least = LeastWork(np.full((1, 2), 10.0), np.full((1, 2), 100.0), None, np.array([True]))
    assert bound_of(least, 1e9, "demand", (1.0, 0.0)).makespan == pytest.approx(5.0)
    assert bound_of(least, 10.0, "demand", (1.0, 0.0)).makespan == pytest.approx(10.0)
    whole = LeastWork(least.latency, least.moved, None, np.array([False]))
    assert bound_of(whole, 1e9, "demand", (1.0, 0.0)).makespan == pytest.approx(10.0)
    pieces = table_of(np.full((2, 2), 5.0), 10.0)
    assert lm.map_jobs(pieces, 1e9).makespan == pytest.approx(5.0)
    assert group_of(pieces, 1e9).jobs == 2
