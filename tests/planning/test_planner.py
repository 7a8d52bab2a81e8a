"""The whole pipeline: plans hold, repeat themselves, and are never worse than leaving everything in
main memory."""

import itertools
import math
import signal
from dataclasses import replace

import numpy as np
import pytest
from tests.support.efforts import SEPARATE, TEST, verified
from tests.support.needs import FIXTURES
from tests.support.networks import GraphBuilder, npu, residual_chain, staged_machine
from tests.support.nightly import by_night
from tests.support.onnx_builder import constants, graph_of

import loadmaster as lm
from loadmaster.core.errors import CapacityError, PlanError, TargetError
from loadmaster.core.progress import Deadline
from loadmaster.planning import addresses
from loadmaster.planning.joint.search import JointSearch
from loadmaster.planning.packing import pack
from loadmaster.targets.load import bundled
from loadmaster.workloads.graph import OpClass, TensorKind

SHIPPED = [
    "squeezenet",
    "shufflenet",
    "inception_v1",
    *by_night("resnet50", "densenet121", "inception_v2", "vgg19", "bvlc_alexnet", "zfnet512"),
]
COMMITTED = ["mobilenetv2", "dlrm", *by_night("bert-base", "gpt2")]


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.slow
def test_every_network_that_onnx_ships_plans_and_the_plan_holds(name):
    plan = verified([lm.load(f"onnx:{name}", precision="int8")], lm.target("edge-npu"))
    assert plan.networks[0].unknown == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMITTED)
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_every_committed_network_plans_at_every_precision(name, precision):
    verified([lm.load(FIXTURES / f"{name}.onnx.gz", precision=precision)], lm.target("edge-npu"))


@pytest.mark.slow
@pytest.mark.parametrize("name", bundled())
def test_two_real_networks_plan_together_on_every_bundled_target(name):
    networks = [lm.load("onnx:squeezenet"), lm.load(FIXTURES / "ncf.onnx.gz")]
    verified(networks, lm.target(name), mini_batches=2)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_plan_byte_for_byte(tmp_path):
    network = [lm.load("onnx:squeezenet")]
    plans = [verified(network, lm.target("edge-npu"), seed=3) for _ in range(2)]
    files = [plan.save(tmp_path / f"{i}.json") for i, plan in enumerate(plans)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert lm.Plan.load(files[0]) == plans[1]


def test_a_scratchpad_too_small_for_an_operator_leaves_it_in_dram_and_says_so():
    plan = verified([residual_chain(2)], npu(scratchpad=1024))
    assert "stream from dram" in str(plan.notes)


def mystery():
    """A network of one operator that is not understood."""
    build = GraphBuilder()
    build.tensor("x", (4, 4, 4), TensorKind.INPUT)
    build.tensor("y", (4, 4, 4))
    build.op("Mystery", OpClass.UNKNOWN, ["x"], "y")
    return build.graph("y")


def test_what_is_not_understood_is_named_in_the_plan():
    plan = verified([mystery()], npu())
    assert plan.networks[0].unknown == ("Mystery",)
    assert plan.jobs[0].macs == 0
    assert plan.jobs[0].reads[0].bytes == 64


def test_efficiencies_spelt_otherwise_than_operators_are_named_in_order():
    spelt = ["MYSTERY", "Mystery", "mYstery", "myStery", "mysTery", "other"]
    machine = npu(scratchpad=0)
    cores = [replace(core, efficiency=dict.fromkeys(spelt, 0.5)) for core in machine.cores]
    plan = verified([mystery()], replace(machine, cores=tuple(cores)))
    named = [note.split()[3] for note in plan.notes if "efficiency" in note]
    assert named == ["MYSTERY", "mYstery", "myStery", "mysTery"]


def test_a_main_memory_too_small_says_how_much_too_small():
    said = r"dram cannot hold.*take 21.1 KiB, 4.00 KiB available, 17.1 KiB in excess: plan fewer"
    with pytest.raises(CapacityError, match=said):
        lm.plan([residual_chain(4)], with_main(4096))


def test_a_fast_memory_too_small_for_a_job_that_needs_it_says_which_job():
    with pytest.raises(CapacityError, match=r"job chain/Conv_b0.* needs all its operands in hbm"):
        lm.plan([residual_chain(2)], staged_machine(1000))


@pytest.mark.parametrize("machine", [npu(), staged_machine(1000)], ids=["in place", "copying"])
def test_a_network_without_work_is_refused_on_every_machine(machine):
    build = GraphBuilder()
    build.tensor("x", (4,), TensorKind.INPUT)
    with pytest.raises(PlanError, match="nothing to plan: every operator is a view"):
        lm.plan([build.graph("x")], machine)


def test_a_private_buffer_too_small_for_any_tile_says_which():
    with pytest.raises(TargetError, match="private buffer"):
        lm.plan([residual_chain(2)], npu(buffer=16))


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 2, 3, 4, 10, 25, 26, 27, 40, 50, 55])
@pytest.mark.parametrize("how", ["raised", "sent"])
def test_an_interrupt_at_any_moment_gives_a_plan_that_holds(call, how):
    calls = 0

    def interrupt(stage, share):
        nonlocal calls
        calls += 1
        if calls == call and how == "raised":
            raise KeyboardInterrupt
        if calls == call:
            signal.raise_signal(signal.SIGINT)

    verified([residual_chain(4)], npu(), mini_batches=2, progress=interrupt)
    assert calls >= call, "an interrupt that never came proves nothing"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupting(*stages):
    def progress(stage, share):
        if stage in stages:
            signal.raise_signal(signal.SIGINT)

    return progress


@pytest.mark.parametrize("stage", ["bounding", "assembling"])
def test_an_interrupt_after_the_search_changes_nothing(stage):
    chain = [residual_chain(4)]
    assert verified(chain, npu(), progress=interrupting(stage)) == verified(chain, npu())


def test_what_the_search_has_found_before_an_interrupt_is_kept():
    """It comes in the second round, when the first has found what is better than the separate
    plan."""
    given, options = ([wide_inside()], npu(scratchpad=6000)), {"mini_batches": 4}
    separate = verified(*given, effort=SEPARATE, **options)

    def interrupt(stage, share):
        if stage == "planning jointly" and share > 0.5:
            raise KeyboardInterrupt

    plan = verified(*given, progress=interrupt, **options)
    assert plan.metrics.makespan.value < separate.metrics.makespan.value
    assert "stopped early" in str(plan.notes)


def test_a_second_interrupt_gives_up():
    with pytest.raises(KeyboardInterrupt):
        lm.plan([residual_chain(4)], npu(), progress=interrupting("lowering", "bounding"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_once_the_time_is_over_memories_are_packed_with_the_least_effort(monkeypatch):
    budgets = []

    def spy(*arguments, seconds=math.inf, **options):
        budgets.append(seconds)
        return pack(*arguments, seconds=seconds, **options)

    monkeypatch.setattr(addresses, "pack", spy)
    plan = verified([residual_chain(4)], npu(), mini_batches=2, time_limit=0.0)
    assert budgets[0] == 0.0
    assert "least effort" in str(plan.notes)
    budgets.clear()
    verified([residual_chain(4)], npu(), mini_batches=2)
    assert set(budgets) == {math.inf}


def with_main(capacity, scratchpad=64 * 1024):
    return npu(scratchpad=scratchpad).with_memory(0, capacity=capacity)


def wide_inside():
    """Convolutions whose results are far larger than what comes in and goes out."""
    build = GraphBuilder("wide")
    last = build.tensor("x", (4, 8, 8), TensorKind.INPUT)
    for number, channels in enumerate((48, 16, 48, 4)):
        last = build.conv(f"t{number}", last, channels)
    return build.graph(last)


def bytes_of_inputs(graphs):
    """Of weights too: what is in main memory whatever the plan, in six mini-batches."""
    return sum(t.bytes for t in lm.lower(graphs, npu(), mini_batches=6).tensors if t.producer < 0)


def test_what_only_the_joint_search_fits_into_main_memory_is_planned():
    """Mini-batches one after the other, with activations on chip, need less of it than the separate
    plan does."""
    graphs, options = [wide_inside()], {"mini_batches": 4}
    separate, joint = (
        verified(graphs, npu(scratchpad=6000), effort=effort, **options).metrics.memory["dram"].peak
        for effort in (SEPARATE, TEST)
    )
    between = (separate + joint) // 2
    assert joint < between < separate
    with pytest.raises(CapacityError, match="cannot hold any plan that was found"):
        lm.plan(graphs, with_main(between, 6000), effort=SEPARATE, **options)
    plan = verified(graphs, with_main(between, 6000), **options)
    assert plan.metrics.memory["dram"].peak <= between


def test_the_search_gives_up_speed_for_a_plan_that_fits():
    """Down to what every plan takes, the capacity of main memory is kept to by the search
    itself."""
    graphs = [wide_inside()]
    fastest = verified(graphs, npu(scratchpad=10_000), mini_batches=6)
    least = bytes_of_inputs(graphs)
    tight = verified(graphs, with_main(least, 10_000), mini_batches=6)
    assert tight.metrics.memory["dram"].peak == least < fastest.metrics.memory["dram"].peak
    assert tight.metrics.makespan.value > fastest.metrics.makespan.value


def test_where_nothing_fits_the_least_that_was_found_and_a_proven_limit_are_told():
    graphs, options = [residual_chain(6)], {"mini_batches": 6, "effort": TEST}
    least = bytes_of_inputs(graphs)
    said = (
        "the least takes .* at one instant, .* available; every plan takes at least .*: plan fewer"
    )
    with pytest.raises(CapacityError, match=f"{said} networks"):
        lm.plan(graphs, with_main(least, 1024), **options)
    with pytest.raises(CapacityError, match="weights with inputs or outputs take"):
        lm.plan(graphs, with_main(least - 1, 1024), **options)


def test_a_time_limit_that_does_not_strike_changes_nothing():
    chain = [residual_chain(3)]
    whole = verified(chain, npu())
    for limit in (1e6, np.float64(1e6)):
        assert verified(chain, npu(), time_limit=limit) == whole


def test_where_no_time_is_left_at_all_the_fast_memory_is_used_all_the_same():
    slow = lm.target("edge-npu", "dram.bandwidth=1GB/s")
    late, calm = (
        verified([residual_chain(10)], slow, mini_batches=4, time_limit=limit)
        for limit in (0.0, None)
    )
    least = calm.metrics.traffic["dram"].value
    assert least <= late.metrics.traffic["dram"].value < 2 * least


@pytest.mark.parametrize("asked", [0, 1, 3, 6, 12])
def test_whenever_the_time_limit_strikes_the_joint_search_has_tried_the_given_orders(
    asked, monkeypatch
):
    tried = []
    run, left = JointSearch.run, itertools.count(asked, -1)

    def spied(search, samples):
        found = run(search, samples)
        tried.append(found.evaluations)
        return found

    monkeypatch.setattr(JointSearch, "run", spied)
    monkeypatch.setattr(Deadline, "passed", lambda _: next(left) <= 0)
    plan = lm.plan([residual_chain(10)], npu(), mini_batches=4, time_limit=1e6, cut="none")
    assert lm.verify(plan) == ()
    assert "time limit" in str(plan.notes)
    assert 4 <= max(tried) < 100


@pytest.mark.parametrize("clock", [933e6, 1.3e9])
def test_makespans_of_a_minute_are_exact_to_the_picosecond(clock):
    """One core does everything: the bound is met exactly, however many times are added up."""
    machine = npu(cores=1, scratchpad=0, buffer=2**20)
    slow = replace(machine, cores=(replace(machine.cores[0], clock=clock),)).with_memory(
        0, capacity=2**30, read_bandwidth=1e14, write_bandwidth=1e14
    )
    plan = verified([residual_chain(3, channels=256, size=56)], slow, mini_batches=60)
    assert plan.metrics.makespan.value > 5
    assert plan.status == "optimal"


@pytest.mark.slow
def test_work_of_hours_is_refused_before_it_overflows():
    with pytest.raises(TargetError, match="75 minutes"):
        lm.plan([lm.load("onnx:resnet50")], lm.target("edge-npu", ["dram.bandwidth=1 B/s"]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": 5}, "target is 5, of type int: give a Target, from loadmaster.target"),
        ({"graphs": 5}, "list of graphs"),
        ({"graphs": [residual_chain(1), 5]}, "list of graphs"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"mini_batches": 10**6}, "give from 1 to"),
        ({"effort": "much"}, "effort"),
        ({"cut": "Auto"}, "did you mean auto"),
        ({"target": npu(copies=False).with_memory(0, in_place=False)}, "a copy engine"),
        (
            {"target": replace(npu(), memories=npu().memories * 2)},
            "at most one more that cores share, and this machine has 4",
        ),
        (
            {"objective": "beauty"},
            "no objective 'beauty': choose one of throughput, latency, energy, edp",
        ),
        (
            {"objective": "latency", "network": "net"},
            "latency of 'net': there is no such network: choose one of chain",
        ),
        ({"network": "chain"}, "is for the objective latency"),
        ({"deadlines": {"net": 1.0}}, "deadline of 'net': there is no such network"),
        ({"periods": {"chain": 0.0}}, "period of 'chain': 0.0 s must be more than zero"),
        ({"deadlines": {"chain": math.inf}}, "must be more than zero, and finite"),
        (
            {"periods": {"chain": 1e4}, "mini_batches": 2},
            "its last mini-batch would come after more than an hour",
        ),
    ],
)
def test_misuse_is_a_clear_error(given, message):
    with pytest.raises(PlanError, match=message):
        lm.plan(**{"graphs": [residual_chain(1)], "target": npu()} | given)


# Outputs that are not results of planned work: shapes, inputs and constants passed through.


@pytest.mark.parametrize(
    "extra", ["Shape(x)", "Identity(unread)", "Identity(x)", "Identity(w)", "Identity(y)"]
)
def test_such_outputs_plan_and_hold(extra):
    nodes = f"y = Relu(x); extra = {extra}"
    graph = graph_of(
        nodes, "float[1,8] x, float[1,8] unread", "y, extra", constants(w=np.zeros((1, 8)))
    )
    verified([graph], lm.target("edge-npu"))


@pytest.mark.parametrize("name", ["server-npu", "edge-npu"])
def test_a_fast_memory_as_large_as_can_be_written_is_as_good_as_one_that_nothing_fills(name):
    large, largest = (
        verified([residual_chain(2)], lm.target(name).with_memory(1, capacity=room))
        for room in (2**40, 2**62)
    )
    assert large.metrics.makespan == largest.metrics.makespan


def test_operators_whose_results_have_no_dimensions():
    nodes = "y = ReduceSum<keepdims=0>(x); z = ReduceMax<keepdims=0>(y)"
    found = verified([graph_of(nodes, "float[4] x", "z")], npu(2, 4096))
    assert len(found.jobs) == 2


@pytest.mark.parametrize("extent", [2**27, 2**40, 2**57 + 1])
def test_long_dimensions_are_planned_or_refused_without_an_entry_for_each_row(extent):
    """The first fits into main memory; others are refused before cuts are looked for."""
    nodes = "h = Relu(x)\np = MaxPool<kernel_shape=[1, 1]>(h)\ny = Sigmoid(p)"
    graph = graph_of(nodes, f"float[1,1,{extent},1] x", "y", options={"precision": "int8"})
    if extent == 2**27:
        verified([graph], lm.target("edge-npu"))
    else:
        with pytest.raises(CapacityError, match="dram cannot hold the networks"):
            lm.plan([graph], "edge-npu", effort=TEST)
