"""What cores can run at one instant, and which jobs they can run at all: against everything that
there is, for few jobs."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz

from loadmaster import _native
from loadmaster.mapping.bounds.configurations import configuration_bound
from loadmaster.mapping.bounds.group_bounds import group_bound, tightened
from loadmaster.mapping.group import Group, queues_of


def every_configuration(count, cores):
    """Numbers of jobs of each kind (rows) on each kind of core (columns) that can run at once."""
    cells = [range(min(int(jobs), int(some)) + 1) for jobs in count for some in cores]
    tables = (
        np.array(numbers).reshape(len(count), len(cores)) for numbers in itertools.product(*cells)
    )
    return [
        table
        for table in tables
        if (table.sum(axis=1) <= count).all() and (table.sum(axis=0) <= cores).all()
    ]


@given(st.integers(0, 10**6))
@fuzz(150)
def test_the_best_configurations_are_those_of_all(seed):
    random = np.random.default_rng(seed)
    count = random.integers(0, 4, random.integers(1, 4)).astype(np.int32)
    cores = random.integers(1, 4, random.integers(1, 3)).astype(np.int32)
    shape = len(count), len(cores)
    demand = random.choice([0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 1.0, 1.5, 8.0], shape)
    worth = np.where(random.random(shape) < 0.3, demand, random.integers(0, 9, shape) / 4)
    configurations = every_configuration(count, cores)
    asked = np.array([(table * demand).sum() for table in configurations])
    gain = np.array([(table * worth).sum() for table in configurations])
    # Jobs that are worth nothing are left out: they only ask for more.
    worthy = np.array([not table[worth == 0].any() for table in configurations])
    within, over = gain[asked <= 1 + 1e-9].max(), asked >= 1 - 1e-9
    beyond, least = ((gain - asked)[some].max(initial=-np.inf) for some in (over, over & worthy))
    pricing = _native.ConfigurationPricing(demand, count, cores, grid=256)
    for nodes in (0, 1, 2, 3, 5, 8, 10_000):
        best = pricing.best(worth, nodes)
        assert best.within >= within - 1e-9
        assert best.beyond >= least - 1e-9
    assert best.within <= within * (1 + 1e-5) + 1e-9
    assert best.beyond == beyond or best.beyond <= beyond + 1e-5 * (1 + abs(beyond))
    for jobs in (best.within_jobs, best.beyond_jobs):
        assert (np.bincount(jobs[jobs >= 0], minlength=len(count)) <= count).all()
    found = best.within_jobs >= 0
    chosen = best.within_jobs[found], np.repeat(np.arange(len(cores)), cores)[found]
    assert worth[chosen].sum() == pytest.approx(within, rel=1e-5, abs=1e-9)
    assert demand[chosen].sum() <= 1 + 1e-9


def test_a_job_does_not_run_beside_itself():
    group = Group(np.ones((1, 2)), np.full((1, 2), 0.25))
    assert configuration_bound(
        group, queues_of(np.array([0]), np.arange(1), 2), 1.0
    ).makespan == pytest.approx(1.0, rel=1e-5)
    # One long, frugal job and hungry ones: with three of it at a time, the bus would never be idle.
    latency = np.repeat(np.array([4.0, 1.0, 1.0])[:, None], 3, axis=1)
    demand = np.repeat(np.array([0.1, 0.7, 0.7])[:, None], 3, axis=1)
    queues = queues_of(np.array([0, 1, 1]), np.arange(3), 3)
    bound = configuration_bound(Group(latency, demand), queues, 4.0)
    assert bound.makespan == pytest.approx(4.0, rel=1e-3)


def test_no_core_runs_a_job_that_takes_longer_there_than_all_jobs_of_a_known_mapping():
    """Four cores share the bus; on forty others, jobs want next to none of it but take too long.
    Shares of jobs would go there."""
    fast, slow = (1.0,) * 4, (41.0,) * 40
    group = Group(np.tile(fast + slow, (40, 1)), np.tile((1.0,) * 4 + (1e-3,) * 40, (40, 1)))
    queues = queues_of(np.arange(40) % 4, np.arange(40), 44)
    root = group_bound(group)
    assert group.makespans(queues)[0] == 40
    assert root.makespan < 22
    assert tightened(group, root, queues).makespan == pytest.approx(40)
    assert not group.within(40).allowed[:, 4:].any()
    assert group.within(41).allowed.all()
