"""The bound of a network holds against every plan of tiny ones: all cuts, cores, orders and residences."""

import numpy as np
import pytest
from tests.support.tiny_plans import best_makespan, every_cut, tiny_machine, tiny_network

from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.planning.cutting.network_bounds import network_bounds
from loadmaster.planning.decisions import MakespanBound
from loadmaster.planning.goal import goal_of
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph


def bound_of(graph: Graph, target: Target) -> MakespanBound:
    bounds = network_bounds([graph], target, 1, lambda w: goal_of(w, "throughput", None, {}, {}), energy_rates(target))
    assert bounds is not None
    return bounds.makespan


@pytest.mark.parametrize("seed", range(10))
def test_no_plan_of_any_cut_of_a_tiny_network_is_faster_than_its_bound(seed: int) -> None:
    """50 networks for every seed, on machines of their own: 500 in all, and every plan of each that could be faster."""
    generator, met = np.random.default_rng(seed), 0
    for _ in range(50):
        graph, target = tiny_network(generator, int(generator.integers(2, 5))), tiny_machine(generator)
        bound = bound_of(graph, target)
        assert bound.picoseconds == max(value for _, value in bound.terms)
        best = min(best_makespan(graph, target, cuts, below=bound.picoseconds + 1) for cuts in every_cut(graph, 4))
        assert best >= bound.picoseconds, bound
        met += best == bound.picoseconds
    assert met > 5, "some bounds are met by a plan, else plans are not tried"
