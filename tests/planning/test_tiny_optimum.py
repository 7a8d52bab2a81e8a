"""Plans of tiny networks."""

import numpy as np
import pytest
from tests.support.cut_networks import convolutions
from tests.support.networks import npu
from tests.support.tiny_plans import tiny_machine, tiny_network

import loadmaster as lm
from loadmaster.planning.cutting.candidates import candidates


@pytest.mark.slow
def test_plans_of_tiny_networks_hold() -> None:
    """How near they come to the best of all is for ``benchmarks.quality``."""
    generator = np.random.default_rng(0)
    for _ in range(30):
        graph = tiny_network(generator, int(generator.integers(2, 4)))
        plan = lm.plan([graph], tiny_machine(generator, 2), cut="none")
        assert lm.verify(plan) == ()
        assert plan.metrics.makespan.lower_bound <= plan.metrics.makespan.value
    generator = np.random.default_rng(5122)
    graph, target = tiny_network(generator, int(generator.integers(2, 5))), tiny_machine(generator)
    plan = lm.plan([graph], target)
    assert lm.verify_against(plan, [graph], target) == ()


def test_ways_to_cut_are_worked_out_only_until_it_is_late() -> None:
    graph, target = convolutions(), npu(3)
    assert [each.name for each in candidates([graph], target, 1, "auto", lambda: True)] == ["none"]
    assert len(list(candidates([graph], target, 1))) > 1
