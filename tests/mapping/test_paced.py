"""Orders that keep the demand for bandwidth level."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.mapping.group import Group, core_and_position, queues_of
from loadmaster.mapping.strategies.paced import paced


def random_group(seed: int, jobs: int, cores: int) -> Group:
    random = np.random.default_rng(seed)
    shape = (jobs, cores)
    return Group(
        random.lognormal(0, 1, shape), random.lognormal(-1, 1, shape) * (random.random(shape) < 0.9)
    )


@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 5))
def test_every_job_stays_on_its_core(seed: int, jobs: int, cores: int) -> None:
    group = random_group(seed, jobs, cores)
    core = np.random.default_rng(seed).integers(0, cores, jobs)
    found, position = core_and_position(paced(group, core), cores)
    assert (found == core).all()
    assert sorted(zip(found.tolist(), position.tolist(), strict=True)) == [
        (c, i) for c in range(cores) for i in range((core == c).sum())
    ]


def test_demand_is_level_where_orders_decide() -> None:
    """Jobs that want all of the bandwidth or none: side by side in pairs of unlike jobs nothing
    waits and nothing is idle."""
    demand = np.repeat(np.tile([1.0, 0.0], 10)[:, None], 2, axis=1)
    group = Group(np.ones((20, 2)), demand)
    core = np.repeat([0, 1], 10)
    assert group.makespans(paced(group, core))[0] == 10
    assert group.makespans(queues_of(core, np.argsort(-demand[:, 0], kind="stable"), 2))[0] == 15


def test_a_large_group_is_mapped_no_better_than_its_bound() -> None:
    random = np.random.default_rng(0)
    latency, bandwidth = random.lognormal(-9, 1, (1000, 16)), random.lognormal(20, 1, (1000, 16))
    names = tuple(map(str, range(1000))), tuple("abcdefghijklmnop")
    table = lm.JobAnalysis(*names, latency, bandwidth, np.full(1000, 10**6))
    found = lm.map_jobs(table, float(np.median(bandwidth)) * 4)
    assert 0 < found.lower_bound <= found.makespan
