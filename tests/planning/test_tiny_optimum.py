"""Plans of tiny networks, which are polished."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.cut_networks import convolutions
from tests.support.networks import npu
from tests.support.tiny_plans import tiny_machine, tiny_network

import loadmaster as lm
from loadmaster.planning import workload_planner
from loadmaster.planning.cutting.candidates import candidates
from loadmaster.targets.hardware import Style


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


def test_polishing_mends_what_the_search_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The joint search keeps what saves most bytes; here another choice ends sooner."""
    generator = np.random.default_rng(1)
    gains = []
    for number in range(40):
        graph, target = (
            tiny_network(generator, int(generator.integers(2, 4))),
            tiny_machine(generator, 2),
        )
        if number == 39:
            target = replace(
                target, cores=tuple(replace(core, style=Style.ROOFLINE) for core in target.cores)
            )
            for jobs in (0, workload_planner.MOST_JOBS):
                monkeypatch.setattr(workload_planner, "MOST_JOBS", jobs)
                gains.append(lm.plan([graph], target, cut="none").metrics.makespan.value)
    assert gains[1] < gains[0]


@pytest.mark.parametrize("call", [1, 5, 40])
def test_an_interrupt_while_a_plan_is_polished_leaves_the_best_so_far(call: int) -> None:
    generator, calls = np.random.default_rng(0), 0
    for _ in range(10):
        graph, target = (
            tiny_network(generator, int(generator.integers(2, 4))),
            tiny_machine(generator, 2),
        )

    def interrupt(stage: str, share: float) -> None:
        nonlocal calls
        calls += stage == "polishing"
        if stage == "polishing" and calls == call:
            raise KeyboardInterrupt

    plan = lm.plan([graph], target, cut="none", progress=interrupt)
    assert calls == call
    assert lm.verify(plan) == ()
    assert any("stopped early" in note for note in plan.notes)


def test_ways_to_cut_are_worked_out_only_until_it_is_late() -> None:
    graph, target = convolutions(), npu(3)
    assert [each.name for each in candidates([graph], target, 1, "auto", lambda: True)] == ["none"]
    assert len(list(candidates([graph], target, 1))) > 1
