"""Orders that keep the demand for bandwidth level."""

import numpy as np

import loadmaster as lm
from loadmaster.mapping.group import Group, queues_of
from loadmaster.mapping.strategies.paced import paced


def test_a_large_group_is_mapped_no_better_than_its_bound():
    random = np.random.default_rng(0)
    latency, bandwidth = random.lognormal(-9, 1, (1000, 16)), random.lognormal(20, 1, (1000, 16))
    names = tuple(map(str, range(1000))), tuple("abcdefghijklmnop")
    table = lm.JobAnalysis(*names, latency, bandwidth, np.full(1000, 10**6))
    found = lm.map_jobs(table, float(np.median(bandwidth)) * 4)
    assert 0 < found.lower_bound <= found.makespan


def test_demand_is_level_where_orders_decide():
    """Jobs that want all of the bandwidth or none: side by side in pairs of unlike jobs nothing
    waits and nothing is idle."""
    demand = np.repeat(np.tile([1.0, 0.0], 10)[:, None], 2, axis=1)
    group = Group(np.ones((20, 2)), demand)
    core = np.repeat([0, 1], 10)
    assert group.makespans(paced(group, core))[0] == 10
    assert group.makespans(queues_of(core, np.argsort(-demand[:, 0], kind="stable"), 2))[0] == 15
