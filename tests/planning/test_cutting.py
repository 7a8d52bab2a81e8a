"""Operators in pieces: plans hold, are never worse than with whole operators, and none is better
than the bound of the network."""

import signal
from dataclasses import replace

import numpy as np
import pytest
from tests.support.cut_networks import convolutions, cut_network, cut_plan
from tests.support.efforts import SEPARATE, TEST, verified
from tests.support.lowered import bounds_of, cuts_by, planner_of
from tests.support.networks import npu, residual_chain
from tests.support.nightly import by_night

import loadmaster as lm
from loadmaster.planning.cutting.candidates import candidates
from loadmaster.targets.hardware import Style
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.grid import divisible
from loadmaster.workloads.lowering.pieces import Cuts

pytestmark = pytest.mark.slow


def machine(cores=2, scratchpad=40_000, bandwidth=1e10):
    return npu(cores, scratchpad, bandwidth=bandwidth)


def random_cuts(graph, generator):
    """Every operator whole, or in up to four parts along one or two dimensions."""

    def cut(form):
        axes = generator.permutation(form.axes)[: generator.integers(0, 3)]
        return form.grid({int(axis): int(generator.integers(1, 5)) for axis in axes})

    return cuts_by(graph, cut)


@pytest.mark.parametrize("seed", [*range(6), *by_night(*range(6, 12))])
def test_no_plan_of_any_cut_is_better_than_the_bound_of_the_network(seed):
    """Random networks, machines of every style of core, and cuts: 240 plans."""
    generator = np.random.default_rng(seed)
    styles = [style for style in Style if style is not Style.ROOFLINE]
    for _ in range(4):
        graph = convolutions(
            rows=int(generator.choice([4, 6, 9])),
            channels=int(generator.choice([4, 8, 24])),
            strides=tuple(generator.choice([1, 2], 2).tolist()),
            skip=bool(seed % 2),
        )
        target = machine(
            int(generator.integers(1, 4)),
            int(generator.choice([2_000, 20_000])),
            float(generator.choice([1e9, 1e11])),
        )
        cores = (replace(core, style=styles[generator.integers(3)]) for core in target.cores)
        target = replace(target, cores=tuple(cores))
        batches = int(generator.integers(1, 3))
        objective = str(generator.choice(["throughput", "energy"]))
        bounds = bounds_of([graph], target, batches, objective)
        for _ in range(5):
            cuts = [random_cuts(graph, generator)]
            work = lm.lower([graph], target, mini_batches=batches, cuts=cuts)
            planner = planner_of(work, target, objective, TEST)
            solution = planner.best()
            assert solution.timeline.makespan >= bounds.makespan.picoseconds
            reached = planner.score_of(solution).objective
            assert reached >= bounds.objective(objective, "")


def test_the_bound_counts_no_rows_that_strides_never_reach():
    """Of twelve rows, a 3 x 3 convolution of stride 2 without padding needs eleven; pieces read no
    more than these."""
    graph, target = convolutions(rows=12, strides=(2,), skip=False, pad=0), machine()
    form = divisible(graph, fuse(graph)[0])
    work = lm.lower([graph], target, cuts=[Cuts([form.grid({2: 5})])])
    planner = planner_of(work, target, effort=TEST)
    bound = bounds_of([graph], target).makespan
    assert planner.best().timeline.makespan >= bound.picoseconds
    weights, result = 8 * 8 * 9, 8 * 5 * 5
    assert bound.main_bytes <= 8 * 11 * 11 + weights + result


def test_pieces_on_several_cores_beat_whole_operators():
    whole = verified([cut_network()], machine(), cut="none")
    plan = cut_plan()
    assert plan.metrics.makespan.value < 0.8 * whole.metrics.makespan.value
    assert plan.metrics.makespan.lower_bound == whole.metrics.makespan.lower_bound, (
        "the bound is one of the network"
    )


@pytest.mark.parametrize("objective", ["throughput", "latency", "energy", "edp"])
@pytest.mark.parametrize(
    ("effort", "target"),
    [(SEPARATE, machine(2, 60_000, 1e9)), (TEST, machine(3, 4_000))],
    ids=["separate", "joint"],
)
def test_cut_plans_are_never_worse_and_hold(objective, effort, target):
    graphs = [convolutions("one", rows=12, channels=24), residual_chain(1, "two")]
    options = {"objective": objective, "mini_batches": 2, "effort": effort}
    whole, cut = (verified(graphs, target, cut=cut, **options) for cut in ("none", "auto"))
    assert cut.objective.value <= whole.objective.value


def test_bands_keep_what_lies_between_operators_on_chip():
    """Whole results exceed the scratchpad, bands of them do not."""
    graph = convolutions(rows=48, channels=8, strides=(1, 1, 1), skip=False)
    target = machine(2, 20_000, 2e8)
    whole, cut = (verified([graph], target, cut=cut) for cut in ("none", "auto"))
    assert cut.metrics.traffic["dram"].value < 0.6 * whole.metrics.traffic["dram"].value


def test_what_cannot_be_cut_plans_as_whole_and_says_why():
    cut, whole = (verified([residual_chain(2)], npu(), cut=cut) for cut in ("auto", "none"))
    assert cut.jobs == whole.jobs
    assert "operators stay whole" in str(cut.notes)
    assert "operators stay whole" not in str(whole.notes)


@pytest.mark.parametrize("call", [1, 3, 5, 8, 12, 20, 30])
def test_an_interrupt_while_cuts_are_chosen_gives_a_plan_that_holds(call):
    calls = 0

    def interrupt(stage, share):
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGINT)

    plan = verified([convolutions(rows=16, channels=32)], machine(), progress=interrupt)
    assert calls >= call
    assert "stopped early" in str(plan.notes)


def test_ways_to_cut_are_worked_out_only_until_it_is_late():
    graph, target = convolutions(), npu(3)
    assert [each.name for each in candidates([graph], target, 1, "auto", lambda: True)] == ["none"]
    assert len(list(candidates([graph], target, 1))) > 1


def test_an_urgent_network_is_also_cut_as_it_would_be_without_the_others():
    graphs, target = [convolutions(), replace(convolutions(rows=40), name="urgent")], npu(3)
    alone = next(each for each in candidates(graphs[1:], target, 1) if each.name == "across cores")

    def cuts(*urgent):
        every = list(candidates(graphs, target, 1, urgent=lambda: urgent))[1:]
        return [each.cuts[1] for each in every]

    assert alone.cuts[0] not in cuts(False, False)
    assert alone.cuts[0] in cuts(False, True)
