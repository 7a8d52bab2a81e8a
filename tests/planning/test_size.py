"""Sizes: the least that suffices has a verified plan, and what is called impossible has a bound;
against trying every value."""

import signal

import pytest
from tests.planning.test_sweep import Here
from tests.support.cut_networks import convolutions
from tests.support.networks import GraphBuilder, residual_chain

import loadmaster as lm
from loadmaster.core.errors import PlanError, TargetError
from loadmaster.planning.sweep.axes import machine, parse_axes, parse_axis, plain
from loadmaster.planning.sweep.limits import Limits
from loadmaster.planning.sweep.orders import order_of
from loadmaster.planning.sweep.size import Verdict, lower_bounds, size
from loadmaster.planning.sweep.sweep import sweep
from loadmaster.report.sweep import size_answer, size_summary
from loadmaster.workloads.graph import TensorKind

pytestmark = pytest.mark.slow

TARGET = lm.target("edge-npu")
FEW = {"effort": "test"}


def elementwise_chain():
    build = GraphBuilder("elementwise")
    return build.graph(
        build.elementwise("b", build.elementwise("a", build.tensor("x", (4, 64), TensorKind.INPUT)))
    )


def sized(text, limits, progress=None, **options):
    return size(
        [residual_chain(2)], TARGET, parse_axis(text), limits, progress=progress, **(FEW | options)
    )


@pytest.mark.parametrize(
    "text",
    [
        "bandwidth=1GB/s:16GB/s",
        "bandwidth=100MB/s,16GB/s,64GB/s",
        "cores.ws.rows=4,8,16,32",
        "scratchpad=2KiB:32KiB",
    ],
)
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_the_least_and_the_impossible_are_those_of_trying_all(text, share):
    """A limit between what the best and the worst machine take; every value is planned and bounded
    by itself."""
    graphs, axis = [residual_chain(2)], parse_axis(text)
    all_ = sweep(graphs, TARGET, (axis,), executor=Here(), **FEW).points
    spans = [point.makespan for point in all_]
    limits = Limits(makespan=min(spans) + share * (max(spans) - min(spans)))
    found = sized(text, limits)
    bounds = [
        lower_bounds(graphs, machine(TARGET, [(axis.name, value)]), 1, {}, {}).makespan.picoseconds
        for value in axis.values
    ]
    impossible = [
        plain(v)
        for v, bound in zip(axis.values, bounds, strict=True)
        if bound > limits.makespan * 1e12
    ]
    enough = [
        plain(v) for v, span in zip(axis.values, spans, strict=True) if span <= limits.makespan
    ]
    assert found.ordered == (axis.name != "cores.ws.rows")
    assert (found.excluded.value.value if found.excluded else None) == (
        impossible[-1] if impossible else None
    )
    assert found.least.value.value in enough
    assert found.least.point.makespan <= limits.makespan
    assert set(found.open) | {found.least.value} >= {
        v for v in axis.values if plain(v) not in impossible and plain(v) <= enough[0]
    }
    assert lm.verify(found.plan) == ()
    assert found.plan.metrics.makespan.value == found.least.point.makespan
    assert found.plan.target == machine(TARGET, [(axis.name, found.least.value)])
    assert found.status == ("feasible" if found.open else "optimal")


def test_bisection_tries_few_values():
    limits = Limits(makespan=1e-5)
    found = sized("bandwidth=100MB/s:100GB/s", limits)
    assert len(found.values) == 1000
    assert len(found.trials) <= 2 * 10 + 1
    assert found.excluded.value.value < found.least.value.value
    order = [found.values.index(trial.value) for trial in found.trials]
    assert order == sorted(order)


def test_what_nothing_can_reach_is_proven_and_nothing_is_planned():
    found = sized("bandwidth=1GB/s:8GB/s", Limits(makespan=1e-9))
    assert (found.status, found.least, found.plan, found.open) == ("infeasible", None, None, ())
    assert {trial.verdict for trial in found.trials} == {Verdict.IMPOSSIBLE}
    assert "that is proven" in " ".join(size_answer(found))


def test_what_no_plan_reaches_though_no_bound_excludes_it_is_said_to_be_unknown():
    graphs = [convolutions(rows=16, channels=32, strides=(1, 1))]
    top = machine(TARGET, [("bandwidth", parse_axis("bandwidth=8GB/s").numbers[0])])
    least = lower_bounds(graphs, top, 1, {}, {}).makespan.picoseconds * 1e-12
    reached = lm.plan(graphs, top, **FEW).metrics.makespan.value
    assert least < reached
    limits = Limits(makespan=(least + reached) / 2)
    found = size(graphs, TARGET, parse_axis("bandwidth=1GB/s:8GB/s"), limits, **FEW)
    assert (found.status, found.least) == ("unknown", None)
    assert found.open[-1].value == 8e9
    assert "was found to suffice." in " ".join(size_answer(found))
    notes, table, _ = size_summary(found, "quick")
    assert "was found to suffice with --effort quick." in " ".join(notes.lines)
    assert table.rows[-1][""] == "not found with --effort quick"


def test_energy_is_minimised_within_the_time_that_is_allowed():
    fast = sized("bandwidth=4GB/s:8GB/s", Limits(makespan=1.0))
    frugal = sized("bandwidth=4GB/s:8GB/s", Limits(makespan=1.0, energy=fast.least.point.energy))
    assert frugal.least.point.energy <= fast.least.point.energy
    assert frugal.plan.objective.name == "energy"
    nothing = sized("bandwidth=4GB/s:8GB/s", Limits(energy=1e-12))
    assert nothing.status == "infeasible"
    assert "J are allowed" in nothing.trials[0].reason


def test_deadlines_and_frames_are_limits():
    late = sized("bandwidth=4GB/s:8GB/s", Limits(deadlines={"chain": 1e-9}))
    assert late.status == "infeasible"
    assert "chain" in late.trials[0].reason
    assert sized("bandwidth=4GB/s:8GB/s", Limits(deadlines={"chain": 1.0})).least.value.value == 4e9
    rate = sized("bandwidth=4GB/s:8GB/s", Limits(fps=100.0), mini_batches=2)
    assert rate.least.point.frames_per_second >= 100
    assert Limits(fps=100.0).seconds(2) == 0.02


def test_ctrl_c_gives_what_is_known():
    pressed = []

    def press(stage, share):
        assert 0 <= share <= 1
        if stage == "bandwidth 16.0 GB/s: lowering" and not pressed:
            pressed.append(stage)
            signal.raise_signal(signal.SIGINT)

    found = sized("bandwidth=100MB/s:16GB/s", Limits(makespan=1e-4), press)
    assert found.interrupted
    assert [trial.value for trial in found.trials if trial.point] == [found.values[-1]], (
        "the plan that was under way is kept"
    )
    assert "Stopped early" in " ".join(size_answer(found))


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("scratchpad=1MiB:4MiB", 1),
        ("cores.ws.clock=1GHz,2GHz", 1),
        ("cores.ws.count=1:3", 1),
        ("cores.ws.job_overhead=100ns,200ns", -1),
        ("cores.ws.rows=8,16", 0),
        ("dram.burst=32,64", 0),
        ("cores.ws.style=weight-stationary,row-stationary", 0),
    ],
)
def test_machines_are_in_order_where_more_is_never_worse(text, order):
    assert order_of(parse_axes([text])[0], TARGET) == order


def test_larger_memories_take_more_energy_and_machines_that_copy_split_for_their_size():
    axis = parse_axis("scratchpad=1MiB:4MiB")
    assert order_of(axis, TARGET, energy=True) == 0
    assert order_of(axis, lm.target("edge-npu", "scratchpad.energy=1pJ/B"), energy=True) == 1
    assert order_of(axis, lm.target("gpu-pcie")) == 0


@pytest.mark.parametrize(
    ("text", "limits", "error", "word"),
    [
        ("scratchpad=1MiB:4MiB", Limits(), PlanError, "nothing is limited"),
        ("batch=1:4", Limits(makespan=1.0), PlanError, "field of the target"),
        ("cores.ws.style=weight-stationary", Limits(makespan=1.0), TargetError, "is no number"),
    ],
)
def test_what_has_no_size_is_refused(text, limits, error, word):
    with pytest.raises(error, match=word):
        sized(text, limits)


@pytest.mark.parametrize(
    "graph", [residual_chain(2), elementwise_chain()], ids=["convolutions", "elementwise"]
)
@pytest.mark.parametrize("name", ["edge-npu", "gpu-pcie"])
def test_bounds_without_a_plan_are_those_of_the_plan(graph, name):
    target = lm.target(name)
    plan = lm.plan([graph], target, mini_batches=2, **FEW)
    bounds = lower_bounds([graph], target, 2, {}, {})
    assert bounds.makespan.picoseconds / 1e12 == plan.metrics.makespan.lower_bound
    assert bounds.energy / 1e15 == plan.metrics.energy.lower_bound


def test_limits_are_above_zero():
    with pytest.raises(PlanError, match="fps: a limit is above zero"):
        Limits(fps=0.0)
