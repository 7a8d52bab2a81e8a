"""More memory, bandwidth, cores or a faster clock never make a plan slower."""

import itertools
from dataclasses import replace

import pytest
from tests.planning.test_sweep import Here
from tests.support.cut_networks import convolutions
from tests.support.networks import npu, residual_chain

import loadmaster as lm
from loadmaster.core.errors import PlanError
from loadmaster.planning import planner
from loadmaster.planning.cutting.candidates import candidates
from loadmaster.planning.sweep.axes import parse_axes
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.planning.sweep.sweep import WarmStarts, sweep
from loadmaster.targets.hardware import Memory

pytestmark = pytest.mark.slow

FEW = {"effort": "test"}


def machine(cores, scratchpad, bandwidth, clock):
    """All cores alike, so that fewer are the first of more."""
    target = npu(cores + 1, scratchpad, bandwidth=bandwidth)
    own = (replace(core, clock=clock) for core in target.cores[:cores])
    return replace(target, cores=tuple(own))


def test_plans_that_know_the_one_of_a_smaller_machine_are_not_slower():
    """A grid of machines, each planned with every one that has one thing less."""
    graph = convolutions(rows=8, channels=8, strides=(1, 2), skip=True)
    axes = ((1, 2), (4_000, 24_000), (1e9, 8e9), (5e8, 1e9))
    sizes = [range(len(axis)) for axis in axes]
    machines = {
        at: machine(*(axis[i] for axis, i in zip(axes, at, strict=True)))
        for at in itertools.product(*sizes)
    }
    alone = {at: lm.plan([graph], target, **FEW) for at, target in machines.items()}
    for at, target in machines.items():
        below = [
            (*at[:axis], at[axis] - 1, *at[axis + 1 :]) for axis in range(len(axes)) if at[axis]
        ]
        for other in below:
            plan = lm.plan([graph], target, smaller=machines[other], **FEW)
            assert lm.verify(plan) == ()
            span = alone[other].metrics.makespan.value
            assert plan.metrics.makespan.value <= span * (1 + 1e-9)


def test_a_fast_memory_that_is_slower_than_the_main_one_delays_nothing():
    """Tilings, and when their first tile arrives, do not depend on a memory that is not used."""
    graph, large = convolutions(rows=8, channels=4), npu(2, 4096)
    slow = Memory("scratchpad", 4096, 1e8, 2e8)
    small = replace(large, memories=(large.main,), copy=None)
    large = replace(large, memories=(large.main, slow))
    alone = lm.plan([graph], small, **FEW)
    beside = lm.plan([graph], large, smaller=small, **FEW)
    assert beside.metrics.makespan.value <= alone.metrics.makespan.value


def test_the_plan_of_a_smaller_machine_is_taken_where_none_better_is_found(monkeypatch):
    """The larger machine is offered whole operators only, so that it is slower by itself."""
    graph, large, small = (
        convolutions(rows=16, channels=32),
        machine(2, 40_000, 1e10, 1e9),
        machine(2, 32_000, 1e10, 1e9),
    )

    def offered(graphs, target, *others):
        return itertools.islice(candidates(graphs, target, *others), 1 if target is large else None)

    monkeypatch.setattr(planner, "candidates", offered)
    alone, theirs, plan = (
        lm.plan([graph], large, **FEW),
        lm.plan([graph], small, **FEW),
        lm.plan([graph], large, smaller=small, **FEW),
    )
    assert theirs.metrics.makespan.value < 0.9 * alone.metrics.makespan.value
    assert plan.metrics.makespan.value <= theirs.metrics.makespan.value
    assert plan.target == large
    assert lm.verify(plan) == ()
    assert (
        "this is the plan for a smaller machine, timed on this one: none was found that is better"
        in plan.notes
    )


def test_more_cores_of_a_kind_beside_another_are_never_slower():
    """The plan for fewer is taken over core by core: those of another kind move up."""
    axes = parse_axes(["cores.ws.count=1:3"])
    found = sweep(
        [convolutions(rows=24, channels=16)], lm.target("edge-npu"), axes, executor=Here(), **FEW
    )
    spans = [point.makespan for point in found.points]
    assert spans == sorted(spans, reverse=True)
    assert all(point.violations == () for point in found.points)
    three, one = (lm.target("edge-npu", f"cores.ws.count={count}") for count in (3, 1))
    plan = lm.plan([convolutions(rows=24, channels=16)], three, smaller=one, **FEW)
    assert lm.verify(plan) == ()


def test_a_slower_point_is_offered_the_plan_of_the_fastest_smaller_machine_once():
    spans = {"a": (1, 5.0), "b": (2, 4.0), "c": (3, 6.0), "d": (4, 4.0)}
    points = {
        key: DesignPoint({"scratchpad": size}, size, 1.0, 1.0, "feasible", makespan=span)
        for key, (size, span) in spans.items()
    }
    warm_starts = WarmStarts((1,))
    assert warm_starts.of(points) == {"c": "b"}
    assert warm_starts.of(points) == {}
    points["c"] = replace(points["c"], makespan=3.0)
    assert warm_starts.of(points) == {"d": "b"}, "c has the plan of b, which is offered to d too"


@pytest.mark.parametrize(
    ("smaller", "word"),
    [
        (machine(2, 20_000, 2e9, 1e9), "dram.read_bandwidth"),
        (machine(3, 20_000, 1e9, 1e9), "number of cores"),
        (machine(2, 40_000, 1e9, 1e9), "scratchpad.capacity"),
        (machine(2, 20_000, 1e9, 2e9), "c0.clock"),
    ],
)
def test_a_machine_that_is_not_smaller_is_refused(smaller, word):
    with pytest.raises(PlanError, match=word):
        lm.plan([residual_chain(1)], machine(2, 30_000, 1e9, 1e9), smaller=smaller)
