"""What plans are made for: energy adds up and is bounded, objectives and deadlines are served,
releases are waited for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.efforts import SEPARATE, TEST, verified
from tests.support.fuzzing import fuzz
from tests.support.networks import GraphBuilder, npu, residual_chain, staged_machine

import loadmaster as lm
from loadmaster.planning.goal import OBJECTIVES
from loadmaster.targets.hardware import Core, Memory, Style, Target
from loadmaster.workloads.graph import TensorKind

KIB = 1024


def two(blocks=2):
    return [residual_chain(blocks), replace(residual_chain(1, channels=24), name="other")]


def test_a_core_waits_for_a_release_that_a_long_job_would_delay():
    """Shorts are due a third of the long job's time after their releases, which are closer together
    than the long jobs that are ready from the start."""
    long, short = (
        residual_chain(1, name, size=size) for name, size in (("long", 24), ("short", 4))
    )
    machine = npu(1, 0)
    time = verified([long], machine, cut="none").metrics.makespan.value
    timings = {"periods": {"short": 1.4 * time}, "deadlines": {"short": 0.3 * time}}
    plan = verified([long, short], machine, cut="none", mini_batches=3, **timings)
    assert not plan.missed


def test_energy_of_one_convolution_by_hand():
    """16 x 16 x 64 multiply-accumulates of 0.3 pJ; 256 B of weights, 1 KiB in and 1 KiB out, each
    byte over 8 KiB of SRAM twice (1.25 pJ: port and array) and from or to DRAM once (162.5 pJ)."""
    build = GraphBuilder()
    build.tensor("x", (16, 8, 8), TensorKind.INPUT)
    graph = build.graph(build.conv("y", "x", 16, kernel=1))
    core = Core("c", Style.ROOFLINE, 1, 1, 1e9, {8: 1.0, 16: 1.0, 32: 1.0}, 1, buffer=8 * KIB)
    machine = Target("one", "", (core,), (Memory("dram", 2**20, 1e9, 1e9),), static_power=0.5)
    plan = verified([graph], machine)
    assert plan.metrics.energy_by["dram"] == pytest.approx(2304 * 162.5e-12)
    assert plan.metrics.energy_by["c"] == pytest.approx(16384 * 0.3e-12 + 2304 * 2 * 1.25e-12)
    static = 0.5 * plan.metrics.makespan.value
    assert plan.metrics.energy.value == pytest.approx(2304 * 165e-12 + 16384 * 0.3e-12 + static)
    assert verified([graph], machine, objective="energy").status == "optimal"


def test_a_deadline_of_no_time_which_no_plan_can_have_is_rejected_and_not_raised():
    graphs, machine = [residual_chain(1)], npu(1, 2**16)
    plan = verified(graphs, machine, effort=SEPARATE, deadlines={"chain": 1e-12})
    assert plan.missed
    forged = replace(plan, timings=(replace(plan.timings[0], deadline=0.0),))
    assert [violation.message for violation in lm.verify_against(forged, graphs, machine)] == [
        "network 'chain' is due after no time at all"
    ]


def test_what_the_target_states_is_what_bytes_take():
    machine = npu(1, 2**20)
    machine = machine.with_memory(0, energy=80e-12).with_memory(1, energy=5e-12)
    plan = verified([residual_chain(1)], machine)
    assert (plan.byte_energy["dram"], plan.byte_energy["scratchpad"]) == (80e-12, 5e-12)
    assert plan.metrics.energy_by["scratchpad"] == pytest.approx(
        plan.metrics.traffic["scratchpad"].value * 5e-12
    )
    assert "bytes of" not in str(plan.notes)


@given(
    st.sampled_from(OBJECTIVES),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([0, 1500, 4000, 2**16]),
    st.sampled_from([0.0, 2e-6, 3e-5]),
    st.sampled_from([None, 1e-6, 4e-5]),
    st.integers(0, 9),
)
@fuzz(30)
@pytest.mark.slow
def test_plans_hold_and_are_never_worse_than_separate_ones(
    objective, cores, mini_batches, scratchpad, period, deadline, seed
):
    options = {
        "mini_batches": mini_batches,
        "objective": objective,
        "network": "other" if objective == "latency" else None,
        "periods": {"chain": period} if period else {},
        "deadlines": {"other": deadline} if deadline else {},
        "seed": seed,
    }
    separate, joint = (
        verified(two(1), npu(cores, scratchpad), effort=effort, **options)
        for effort in (SEPARATE, TEST)
    )
    assert joint.lateness <= separate.lateness
    if joint.lateness == separate.lateness:
        assert joint.objective.value <= separate.objective.value
    for job in joint.jobs:
        assert job.network != "chain" or job.start >= period * job.mini_batch * (1 - 1e-12)


@given(st.sampled_from(OBJECTIVES), st.sampled_from([1500, 20000]), st.sampled_from([0.0, 1e-5]))
@fuzz(8)
def test_machines_that_copy_wait_for_releases_too(objective, hbm, period):
    periods = {"chain": period} if period else {}
    plan = verified(
        [residual_chain(1, channels=4, size=6)],
        staged_machine(hbm),
        mini_batches=3,
        objective=objective,
        periods=periods,
    )
    inputs = {tensor.name: tensor.mini_batch for tensor in plan.tensors if tensor.kind == "input"}
    assert all(
        copy.start >= period * inputs[copy.tensor] * (1 - 1e-12)
        for copy in plan.transfers
        if copy.tensor in inputs
    )


@pytest.mark.slow
@pytest.mark.parametrize("scratchpad", [0, 2000, 2**15, 2**20])
@pytest.mark.parametrize("mini_batches", [1, 3])
def test_plans_made_for_energy_take_no_more_than_others(scratchpad, mini_batches):
    machine = npu(3, scratchpad)
    fast, frugal = (
        verified(two(), machine, mini_batches=mini_batches, objective=objective)
        for objective in ("throughput", "energy")
    )
    assert frugal.metrics.energy.value <= fast.metrics.energy.value


def test_energies_of_any_size_are_bounded_as_well_as_small_ones():
    """From picojoules to as far as units reach: these integers have no end."""
    found = []
    for factor in (1.0, 2.0**63, 2.0**72):
        core = {"buffer": 2e-12 * factor, "local": 0.0, "network": 0.0}
        core |= {f"mac_{width}": 1e-12 * factor for width in ("int8", "fp16", "fp32")}
        machine = npu(1, 2**12)
        cores = tuple(replace(each, energy=core) for each in machine.cores)
        machine = replace(machine, cores=cores).with_memory(0, energy=80e-12 * factor)
        machine = machine.with_memory(1, energy=5e-12 * factor)
        cost = verified([residual_chain(1)], machine, effort=SEPARATE).metrics.energy
        found.append((cost.value / factor, cost.lower_bound / factor))
    for larger in found[1:]:
        assert larger == pytest.approx(found[0], rel=1e-3)


def test_static_power_makes_haste_worth_energy():
    machine = npu(3, 2**15)
    slow, quick = (
        verified(two(), replace(machine, static_power=watts), objective="energy")
        for watts in (0.0, 10.0)
    )
    assert quick.metrics.makespan.value <= slow.metrics.makespan.value
    assert quick.metrics.energy.value > 10.0 * quick.metrics.makespan.value


def test_latency_of_the_network_that_counts_is_about_what_it_is_alone():
    machine = npu(2, 2**16)
    alone = verified([two()[1]], machine, mini_batches=2)
    together = verified(two(), machine, mini_batches=2, objective="latency", network="other")
    assert together.objective.network == "other"
    assert together.objective.lower_bound == pytest.approx(alone.metrics.makespan.lower_bound)
    assert together.metrics.makespan.value > together.objective.value


def test_deadlines_are_met_where_they_can_be():
    machine = npu(2, 2**14)
    free = verified(two(3), machine, mini_batches=3)
    served = verified(two(3), machine, mini_batches=3, objective="latency", network="other")
    deadline = 1.1 * served.metrics.latency["other"].value
    assert deadline < free.metrics.latency["other"].value
    plan = verified(two(3), machine, mini_batches=3, deadlines={"other": deadline})
    assert (plan.missed, plan.lateness) == (0, 0.0)
    assert plan.metrics.makespan.value >= free.metrics.makespan.lower_bound


def test_periodic_mini_batches_are_served_one_by_one():
    machine = npu(2, 2**16)
    period = 1.5 * verified([residual_chain(2)], machine).metrics.makespan.value
    plan = verified(
        two(), machine, mini_batches=4, periods={"chain": period}, deadlines={"chain": period}
    )
    assert plan.missed == 0
    assert plan.metrics.makespan.lower_bound > 3 * period
    chain = [batch for batch in plan.mini_batches if batch.network == "chain"]
    assert [batch.release / period for batch in chain] == pytest.approx(range(4))


@pytest.mark.parametrize("seconds", [1e7, 1e300])
def test_a_deadline_that_no_plan_can_miss_is_none(seconds):
    plan = verified(
        [residual_chain(1)],
        npu(2),
        effort=SEPARATE,
        mini_batches=2,
        deadlines={"chain": seconds},
        periods={"chain": 1.0},
    )
    assert [(timing.period, timing.deadline) for timing in plan.timings] == [(1.0, None)]


def test_impossible_deadlines_are_told():
    machine = npu(2, 2**16)
    least = verified([residual_chain(2)], machine, mini_batches=2).metrics.makespan.lower_bound
    plan, possible = (
        verified([residual_chain(2)], machine, mini_batches=2, deadlines={"chain": share * least})
        for share in (0.9, 1e3)
    )
    assert plan.missed
    assert plan.status == "feasible"
    assert sum("is impossible" in note for note in plan.notes) == 1
    assert "is impossible" not in str(possible.notes)
