"""Sizes: the least that suffices has a verified plan, and what is called impossible has a bound;
against trying every value."""

import itertools
import signal
from dataclasses import replace

import pytest
from tests.planning.test_sweep import Here
from tests.support.command_line import ran
from tests.support.cut_networks import convolutions
from tests.support.efforts import verified
from tests.support.lowered import bounds_of
from tests.support.networks import GraphBuilder, npu, residual_chain
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.core.errors import PlanError, TargetError
from loadmaster.planning import planner
from loadmaster.planning.cutting.candidates import candidates
from loadmaster.planning.decisions import Bounds, MakespanBound
from loadmaster.planning.sweep import size as size_module
from loadmaster.planning.sweep.axes import machine, parse_axes, parse_axis, plain
from loadmaster.planning.sweep.limits import Limits
from loadmaster.planning.sweep.orders import WarmStarts, order_of
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.planning.sweep.size import Verdict, size
from loadmaster.planning.sweep.sweep import sweep
from loadmaster.report.sweep import size_answer, size_summary
from loadmaster.targets.hardware import Memory
from loadmaster.workloads.graph import TensorKind

pytestmark = pytest.mark.slow

TARGET = lm.target("edge-npu")
FEW = {"effort": "test"}


def elementwise_chain():
    build = GraphBuilder("elementwise")
    return build.graph(
        build.elementwise("b", build.elementwise("a", build.tensor("x", (4, 64), TensorKind.INPUT)))
    )


def sized(text, limits, graphs=None, **options):
    return size(graphs or [residual_chain(2)], TARGET, parse_axis(text), limits, **FEW, **options)


def points(graphs, axis, **options):
    return sweep(graphs, TARGET, [axis], executor=Here(), **FEW, **options).points


def test_networks_may_be_given_one_by_one():
    found = sized("bandwidth=1GB/s", Limits(makespan=1.0), graphs=iter([residual_chain(2)]))
    assert found.networks == ("chain",)


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
    spans = [point.makespan for point in points(graphs, axis)]
    limits = Limits(makespan=min(spans) + share * (max(spans) - min(spans)))
    found = sized(text, limits)
    impossible = [
        plain(value)
        for value in axis.values
        if bounds_of(graphs, machine(TARGET, [(axis.name, value)])).makespan.picoseconds
        > limits.makespan * 1e12
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


def test_limits_alone_say_what_a_size_must_reach_and_may_lie_far_away():
    assert sized("bandwidth=1GB/s", Limits(deadlines={"chain": 1e300})).status == "optimal"
    for other in ({"deadlines": {"chain": 1.0}}, {"objective": "energy"}):
        with pytest.raises(PlanError, match="deadlines and objective follow from the limits"):
            sized("bandwidth=1GB/s", Limits(makespan=1.0), **other)
    with pytest.raises(PlanError, match=r"deadlines is .* of type list: give"):
        Limits(deadlines=["chain"])
    with pytest.raises(PlanError, match="fps: a limit is above zero"):
        Limits(fps=0.0)


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
    least = bounds_of(graphs, top).makespan.picoseconds * 1e-12
    reached = verified(graphs, top).metrics.makespan.value
    assert least < reached
    limits = Limits(makespan=(least + reached) / 2)
    found = sized("bandwidth=1GB/s:8GB/s", limits, graphs)
    assert (found.status, found.least) == ("unknown", None)
    assert found.open[-1].value == 8e9
    assert "was found to suffice." in " ".join(size_answer(found))
    notes, table, _ = size_summary(found, "quick")
    assert "was found to suffice with --effort quick." in " ".join(notes.lines)
    assert table.rows[-1][""] == "not found with --effort quick"


def spans_are(monkeypatch, seconds):
    """Plans take as long as is said of each setting."""
    real = size_module.point_and_plan

    def said(setting):
        point, plan = real(setting)
        return replace(point, makespan=seconds(setting)), plan

    monkeypatch.setattr(size_module, "point_and_plan", said)


@pytest.mark.parametrize("good", [4, 6, 7])
def test_a_smaller_machine_may_suffice_where_the_search_fails_on_the_largest(monkeypatch, good):
    """Of values of which the first few suffice."""
    spans_are(monkeypatch, lambda setting: 2.0 if setting.at["bandwidth"] > good * 1e9 else 0.5)
    found = sized("bandwidth=1GB/s:8GB/s:1GB/s", Limits(makespan=1.0))
    assert (found.status, found.least.value.value) == ("optimal", 1e9)


def test_better_machines_are_given_the_plan_of_the_worst(monkeypatch):

    def slow_alone(setting):
        alone = setting.at["bandwidth"] > 1e9 and "smaller" not in setting.options
        return 2.0 if alone else 1.0

    spans_are(monkeypatch, slow_alone)
    found = sized("bandwidth=1GB/s:8GB/s", Limits(makespan=0.5))
    assert found.status == "unknown"
    assert found.trials[0].value.value == 1e9
    assert [trial.point.makespan for trial in found.trials if trial.point] == [1.0] * 4
    found = sized("bandwidth=1GB/s:8GB/s", Limits(makespan=1.5))
    assert (found.least.value.value, len(found.trials)) == (1e9, 1)


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
        if stage.endswith(": lowering") and not pressed:
            pressed.append(stage)
            signal.raise_signal(signal.SIGINT)

    found = sized("bandwidth=100MB/s:16GB/s", Limits(makespan=1e-4), progress=press)
    assert found.interrupted
    (kept,) = [trial for trial in found.trials if trial.point]
    assert pressed == [f"bandwidth {kept.value}: lowering"], "the plan that was under way is kept"
    assert "Stopped early" in " ".join(size_answer(found))


@pytest.mark.parametrize(
    ("text", "order"),
    cases("""
        scratchpad=1MiB:4MiB | 1
        cores.ws.clock=1GHz,2GHz | 1
        cores.ws.count=1:3 | 1
        cores.ws.job_overhead=100ns,200ns | -1
        cores.ws.rows=8,16 | 0
        dram.burst=32,64 | 0
        cores.ws.style=weight-stationary,row-stationary | 0
    """),
)
def test_machines_are_in_order_where_more_is_never_worse(text, order):
    assert order_of(parse_axes([text])[0], TARGET) == int(order)


def test_larger_memories_take_more_energy():
    axis = parse_axis("scratchpad=1MiB:4MiB")
    assert order_of(axis, TARGET, energy=True) == 0
    assert order_of(axis, lm.target("edge-npu", "scratchpad.energy=1pJ/B"), energy=True) == 1
    assert order_of(axis, lm.target("gpu-pcie")) == 1


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
    plan = verified([graph], target, mini_batches=2)
    bounds = bounds_of([graph], target, 2)
    assert bounds.makespan.picoseconds / 1e12 == plan.metrics.makespan.lower_bound
    assert bounds.energy / 1e15 == plan.metrics.energy.lower_bound


@pytest.mark.parametrize("whole", [8_267_281, 31_124_978, 265_718_132_658, 4_057_025_965_034])
def test_a_bound_does_not_exclude_a_limit_that_is_the_bound_itself(whole):
    # Of many a whole number n of picoseconds, n / 1e12 * 1e12 is less than n.
    graph = elementwise_chain()
    bounds = Bounds(MakespanBound(0, (("", whole),)), 1, {graph.name: whole})
    reached = Limits(makespan=whole / 1e12), Limits(deadlines={graph.name: whole / 1e12})
    assert [limits.excluded_by(bounds, [graph], 1) for limits in reached] == ["", ""]
    bounds = Bounds(MakespanBound(0, (("", 1),)), whole, {})
    assert not Limits(energy=whole / 1e15).excluded_by(bounds, [graph], 1)
    assert Limits(energy=(whole - 1) / 1e15).excluded_by(bounds, [graph], 1)


# More memory, bandwidth, cores or a faster clock never make a plan slower.


def machine_of(cores, scratchpad, bandwidth, clock):
    """All cores alike, so that fewer are the first of more."""
    target = npu(cores + 1, scratchpad, bandwidth=bandwidth)
    own = (replace(core, clock=clock) for core in target.cores[:cores])
    return replace(target, cores=tuple(own))


def test_plans_that_know_the_one_of_a_smaller_machine_are_not_slower():
    """With the least of everything else, and with the most."""
    graph = convolutions(rows=8, channels=8, strides=(1, 2), skip=True)
    axes = ((1, 2), (4_000, 24_000), (1e9, 8e9), (5e8, 1e9))
    least, most = zip(*axes, strict=True)
    smallest, largest = machine_of(*least), machine_of(*most)
    for axis in range(len(axes)):
        larger = machine_of(*least[:axis], most[axis], *least[axis + 1 :])
        smaller = machine_of(*most[:axis], least[axis], *most[axis + 1 :])
        for one, other in ((smallest, larger), (smaller, largest)):
            alone = verified([graph], one).metrics.makespan.value
            plan = verified([graph], other, smaller=one)
            assert plan.metrics.makespan.value <= alone * (1 + 1e-9)


def test_a_fast_memory_that_is_slower_than_the_main_one_delays_nothing():
    """Tilings, and when their first tile arrives, do not depend on a memory that is not used."""
    graph, large = convolutions(rows=8, channels=4), npu(2, 4096)
    slow = Memory("scratchpad", 4096, 1e8, 2e8)
    small = replace(large, memories=(large.main,), copy=None)
    large = replace(large, memories=(large.main, slow))
    alone = verified([graph], small)
    beside = verified([graph], large, smaller=small)
    assert beside.metrics.makespan.value <= alone.metrics.makespan.value


@pytest.mark.parametrize("scratchpad", [32_000, 0])
def test_the_plan_of_a_smaller_machine_is_taken_where_none_better_is_found(monkeypatch, scratchpad):
    """The larger machine is offered whole operators only, so that it is slower by itself."""
    graph = convolutions(rows=16, channels=32)
    large, small = (machine_of(2, room, 1e10, 1e9) for room in (40_000, scratchpad))

    def offered(graphs, target, *others):
        return itertools.islice(candidates(graphs, target, *others), 1 if target is large else None)

    monkeypatch.setattr(planner, "candidates", offered)
    alone, theirs = verified([graph], large), verified([graph], small)
    plan = verified([graph], large, smaller=small)
    assert theirs.metrics.makespan.value < 0.9 * alone.metrics.makespan.value
    assert plan.metrics.makespan.value <= theirs.metrics.makespan.value
    assert plan.target == large
    assert (
        "this is the plan for a smaller machine, simulated on this one: no better plan was found"
        in plan.notes
    )


def test_more_cores_of_a_kind_beside_another_are_never_slower():
    """The plan for fewer is taken over core by core: those of another kind move up."""
    graphs = [convolutions(rows=24, channels=16)]
    found = points(graphs, parse_axis("cores.ws.count=1:3"))
    spans = [point.makespan for point in found]
    assert spans == sorted(spans, reverse=True)
    assert all(point.violations == () for point in found)
    three, one = (lm.target("edge-npu", f"cores.ws.count={count}") for count in (3, 1))
    verified(graphs, three, smaller=one)


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
        (machine_of(2, 20_000, 2e9, 1e9), "dram.read_bandwidth"),
        (machine_of(3, 20_000, 1e9, 1e9), "number of cores"),
        (machine_of(2, 40_000, 1e9, 1e9), "scratchpad.capacity"),
        (machine_of(2, 20_000, 1e9, 2e9), "c0.clock"),
    ],
)
def test_a_machine_that_is_not_smaller_is_refused(smaller, word):
    with pytest.raises(PlanError, match=word):
        lm.plan([residual_chain(1)], machine_of(2, 30_000, 1e9, 1e9), smaller=smaller)


def test_machines_that_cannot_run_the_networks_have_no_plan_and_end_nothing():
    """Of 16 bytes a core's buffer has too few for the smallest tile."""
    text = "cores.ws.buffer=16B,64KiB"
    small, large = points([residual_chain(2)], parse_axis(text))
    assert (small.status, large.planned) == ("no plan", True)
    assert "enlarge the buffer" in small.reason
    (trial, least) = sized(text, Limits(makespan=1.0)).trials
    assert (trial.verdict, least.verdict) == (Verdict.NOT_FOUND, Verdict.SUFFICES)


def test_deadlines_are_those_of_the_networks_of_a_point():
    graphs = [residual_chain(2), elementwise_chain()]
    (axis,) = parse_axes(["networks=chain,elementwise,chain+elementwise"])
    found = points(graphs, axis, deadlines={"chain": 1e-9})
    assert [point.missed for point in found] == [1, 0, 1]
    with pytest.raises(PlanError, match="nobody"):
        points(graphs, axis, deadlines={"nobody": 1.0})


def test_ctrl_c_while_the_plan_is_written_loses_nothing(tmp_path, monkeypatch):
    save = lm.Plan.save

    def pressed(plan, path):
        signal.raise_signal(signal.SIGINT)
        return save(plan, path)

    monkeypatch.setattr(lm.Plan, "save", pressed)
    monkeypatch.chdir(tmp_path)
    ran(
        "size onnx:squeezenet --target edge-npu --effort quick --fps 1 --no-report --out found",
        "--vary bandwidth=4GB/s",
    )
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"plan.json", "size.json"}
