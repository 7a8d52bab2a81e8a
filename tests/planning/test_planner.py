"""The whole pipeline: plans hold, repeat themselves, and are never worse than leaving everything in main memory."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.networks import GraphBuilder, npu, residual_chain, staged_machine

import loadmaster as lm
from loadmaster.core.errors import CapacityError, PlanError, TargetError
from loadmaster.targets.load import bundled
from loadmaster.workloads.graph import OpClass, TensorKind
from loadmaster.workloads.lowering.instantiate import lower

FIXTURES = Path(__file__).parents[2] / "fixtures"
SHIPPED = ["resnet50", "densenet121", "inception_v1", "inception_v2", "shufflenet", "squeezenet", "vgg19", "bvlc_alexnet", "zfnet512"]
COMMITTED = ["bert-base", "gpt2", "mobilenetv2", "dlrm"]


@st.composite
def graphs(draw, name: str = "net"):
    """Convolutions, sums and unknown operators over earlier results."""
    build = GraphBuilder(name)
    channels, size = draw(st.sampled_from([3, 8, 17])), draw(st.sampled_from([1, 5, 8]))
    known = [build.tensor("x", (channels, size, size), TensorKind.INPUT)]
    for index in range(draw(st.integers(1, 7))):
        source, other = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            known.append(build.elementwise(f"t{index}", source, other))
        elif kind == 1:
            build.tensor(f"t{index}", (channels, size, size))
            known.append(build.op("Odd", OpClass.UNKNOWN, [source, other], f"t{index}"))
        else:
            known.append(build.conv(f"t{index}", source, channels, draw(st.sampled_from([1, 3]))))
    outputs = draw(st.lists(st.sampled_from(known[1:]), min_size=1, max_size=2, unique=True))
    return build.graph(*outputs)


@given(graphs("a"), graphs("b"), st.integers(1, 3), st.sampled_from([0, 200, 1000, 5000, 10**6]), st.integers(1, 3), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_every_plan_of_random_networks_holds(a, b, cores: int, scratchpad: int, mini_batches: int, seed: int) -> None:
    plan = lm.plan([a, b], npu(cores, scratchpad), mini_batches=mini_batches, seed=seed, samples=4, rounds=1)
    assert lm.verify(plan) == ()
    assert plan.metrics.makespan.lower_bound <= plan.metrics.makespan.value


@given(graphs(), st.sampled_from([1500, 3000, 20000]), st.integers(1, 2))
@settings(max_examples=40, deadline=None)
def test_every_plan_with_copies_holds_or_says_what_does_not_fit(graph, hbm: int, mini_batches: int) -> None:
    try:
        plan = lm.plan([graph], staged_machine(hbm), mini_batches=mini_batches, samples=2)
    except CapacityError:
        # Refusing is right only if some job's operands exceed the memory, or come so close that packing may fail.
        jobs = lower([graph], staged_machine(hbm)).jobs
        assert max(sum(-(-operand.bytes // 64) * 64 for operand in (*job.reads, *job.writes)) for job in jobs) > hbm / 2
    else:
        assert lm.verify(plan) == ()


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.slow
def test_every_network_that_onnx_ships_plans_and_the_plan_holds(name: str) -> None:
    plan = lm.plan([lm.load(f"onnx:{name}")], lm.target("edge-npu"), samples=16, rounds=1)
    assert lm.verify(plan) == ()
    assert plan.networks[0].unknown == ()


@pytest.mark.parametrize("name", COMMITTED)
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_every_committed_network_plans_at_every_precision(name: str, precision: str) -> None:
    plan = lm.plan([lm.load(FIXTURES / f"{name}.onnx.gz", precision=precision)], lm.target("edge-npu"), samples=16, rounds=1)
    assert lm.verify(plan) == ()


@pytest.mark.parametrize("name", bundled())
def test_two_real_networks_plan_together_on_every_bundled_target(name: str) -> None:
    networks = [lm.load("onnx:squeezenet"), lm.load(FIXTURES / "mobilenetv2.onnx.gz")]
    plan = lm.plan(networks, lm.target(name), mini_batches=2, samples=8, rounds=1)
    assert lm.verify(plan) == ()


def test_a_plan_is_never_slower_than_one_without_the_scratchpad() -> None:
    network = [lm.load("onnx:squeezenet", precision="int8")]
    with_it = lm.plan(network, lm.target("edge-npu"), samples=8)
    without = lm.plan(network, lm.target("edge-npu", ["scratchpad.capacity=0"]), samples=8)
    assert with_it.metrics.makespan.value < without.metrics.makespan.value
    assert with_it.metrics.traffic["dram"].value < without.metrics.traffic["dram"].value


def test_the_same_seed_gives_the_same_plan_byte_for_byte(tmp_path: Path) -> None:
    network = [lm.load("onnx:squeezenet")]
    files = [lm.plan(network, lm.target("edge-npu"), seed=3, samples=8).save(tmp_path / f"{i}.json") for i in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert lm.Plan.load(files[0]) == lm.plan(network, lm.target("edge-npu"), seed=3, samples=8)


def test_a_scratchpad_too_small_for_an_operator_leaves_it_in_dram_and_says_so() -> None:
    plan = lm.plan([residual_chain(2)], npu(scratchpad=1024), samples=2)
    assert lm.verify(plan) == ()
    assert any("stream from dram" in note for note in plan.notes)


def test_what_is_not_understood_is_named_in_the_plan() -> None:
    build = GraphBuilder()
    build.tensor("x", (4, 4, 4), TensorKind.INPUT)
    build.tensor("y", (4, 4, 4))
    build.op("Mystery", OpClass.UNKNOWN, ["x"], "y")
    plan = lm.plan([build.graph("y")], npu(), samples=2)
    assert any("Mystery" in note for note in plan.notes)
    assert plan.jobs[0].macs == 0
    assert plan.jobs[0].reads[0].bytes == 64


def test_a_main_memory_too_small_says_how_much_too_small() -> None:
    machine = npu()
    with pytest.raises(CapacityError, match=r"dram cannot hold.*KiB required.*available.*in excess"):
        lm.plan([residual_chain(4)], replace(machine, main=replace(machine.main, capacity=4096)))


def test_a_fast_memory_too_small_for_a_job_that_needs_it_says_which_job() -> None:
    with pytest.raises(CapacityError, match="job chain/Conv_b0 needs all its operands in hbm"):
        lm.plan([residual_chain(2)], staged_machine(1000))


def test_a_private_buffer_too_small_for_any_tile_says_which() -> None:
    with pytest.raises(TargetError, match="private buffer"):
        lm.plan([residual_chain(2)], npu(buffer=16))


def test_an_interrupt_still_gives_a_plan_that_holds() -> None:
    def interrupt(stage: str, share: float) -> None:
        if stage.startswith("mapping"):
            raise KeyboardInterrupt

    plan = lm.plan([residual_chain(4)], npu(), progress=interrupt)
    assert lm.verify(plan) == ()
    assert any("stopped early" in note for note in plan.notes)


def test_a_time_limit_that_does_not_strike_changes_nothing() -> None:
    chain = [residual_chain(3)]
    assert lm.plan(chain, npu(), time_limit=1e6, samples=8) == lm.plan(chain, npu(), samples=8)


def test_a_time_limit_that_strikes_is_said() -> None:
    plan = lm.plan([residual_chain(3)], npu(), time_limit=0.0, samples=10**6)
    assert lm.verify(plan) == ()
    assert any("time limit" in note for note in plan.notes)


def test_optimal_is_claimed_where_the_bound_is_met() -> None:
    build = GraphBuilder()
    build.tensor("x", (16, 8, 8), TensorKind.INPUT)
    build.conv("y", "x", 16)
    machine = npu(cores=2, scratchpad=0)
    fast = replace(machine, main=replace(machine.main, read_bandwidth=1e12, write_bandwidth=1e12))
    plan = lm.plan([build.graph("y")], fast)
    assert plan.status == "optimal"
    assert plan.metrics.makespan.value == plan.metrics.makespan.lower_bound


@pytest.mark.parametrize("clock", [933e6, 1.3e9])
def test_makespans_of_a_minute_are_exact_to_the_picosecond(clock: float) -> None:
    """One core does everything: the bound is met exactly, however many times are added up."""
    machine = npu(cores=1, scratchpad=0, buffer=2**20)
    core, main = replace(machine.cores[0], clock=clock), replace(machine.main, capacity=2**30, read_bandwidth=1e14, write_bandwidth=1e14)
    slow = replace(machine, cores=(core,), main=main)
    plan = lm.plan([residual_chain(3, channels=256, size=56)], slow, mini_batches=60, samples=1)
    assert plan.metrics.makespan.value > 5
    assert plan.status == "optimal"
    assert lm.verify(plan) == ()


def test_work_of_hours_is_refused_before_it_overflows() -> None:
    with pytest.raises(PlanError, match=r"2\.5 hours"):
        lm.plan([lm.load("onnx:resnet50")], lm.target("edge-npu", ["dram.bandwidth=1 B/s"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([residual_chain(1)], "edge-npu", {}), "target must be a Target"),
        ((residual_chain(1), npu(), {}), "list of graphs"),
        ((["x.onnx"], npu(), {}), "list of graphs"),
        (([residual_chain(1)], npu(), {"seed": -1}), "seed"),
        (([residual_chain(1)], npu(), {"seed": 2**63}), "seed"),
        (([residual_chain(1)], npu(), {"mini_batches": 10**6}), "more than"),
        (([residual_chain(1)], replace(npu(), main=replace(npu().main, in_place=False)), {}), "single core"),
    ],
)
def test_misuse_is_a_clear_error(arguments, message: str) -> None:
    graphs, machine, options = arguments
    with pytest.raises(PlanError, match=message):
        lm.plan(graphs, machine, **options)
