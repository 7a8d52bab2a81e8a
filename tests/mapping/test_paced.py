"""Orders that keep the demand for bandwidth level."""

import numpy as np

import loadmaster as lm


def test_a_large_group_is_mapped_no_better_than_its_bound() -> None:
    random = np.random.default_rng(0)
    latency, bandwidth = random.lognormal(-9, 1, (1000, 16)), random.lognormal(20, 1, (1000, 16))
    names = tuple(map(str, range(1000))), tuple("abcdefghijklmnop")
    table = lm.JobAnalysis(*names, latency, bandwidth, np.full(1000, 10**6))
    found = lm.map_jobs(table, float(np.median(bandwidth)) * 4)
    assert 0 < found.lower_bound <= found.makespan
