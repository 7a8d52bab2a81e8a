"""Cores for jobs by an integer program."""

import itertools

import numpy as np
import pytest
from tests.support.few_kinds import search_of_few_kinds

from loadmaster.core.progress import NO_DEADLINE
from loadmaster.mapping.bounds.group_bounds import loads
from loadmaster.mapping.group import Group
from loadmaster.mapping.strategies import auto
from loadmaster.mapping.strategies.whole_jobs import whole_jobs


def longest(group, core):
    """The longest that a core or the bus is busy."""
    own, others, bus = (table[np.arange(group.jobs), core] for table in loads(group))
    return float(max(np.bincount(core, own, minlength=group.cores).max() + others.sum(), bus.sum()))


@pytest.mark.parametrize("seed", range(8))
def test_no_other_cores_are_better_by_more_than_the_gap(seed):
    random = np.random.default_rng(seed)
    latency = random.choice([0.5, 1.0, 2.0, 7.0, np.inf], (6, 3))
    latency[:, 0] = random.choice([1.0, 2.0], 6)
    group = Group(latency, random.choice([0.0 if seed % 2 else 0.01, 0.1, 0.5, 1.5], (6, 3)))
    every = [
        np.array(core)
        for core in itertools.product(range(3), repeat=6)
        if group.allowed[range(6), core].all()
    ]
    core = whole_jobs(group, 100.0, NO_DEADLINE)
    assert longest(group, core) <= 1.001 * min(longest(group, each) for each in every)


def test_what_is_no_better_or_too_large_is_left_alone():
    group = Group(np.ones((4, 2)), np.full((4, 2), 0.1))
    assert whole_jobs(group, 1.9, NO_DEADLINE) is None
    random = np.random.default_rng(0)
    assert (
        whole_jobs(Group(random.random((600, 2)), np.full((600, 2), 0.1)), 1e9, NO_DEADLINE) is None
    )


def test_auto_goes_on_from_what_every_core_can_hold():
    """Few samples are left: what annealing starts from must be good."""
    search = search_of_few_kinds()
    before = search.score
    auto.go_on(search)
    assert search.bound.cores
    assert search.bound.score <= search.score < before / 2
