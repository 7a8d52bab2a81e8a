"""Machines whose cores cannot use main memory: several cores, and jobs that only fit into the fast
memory in pieces."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.cut_networks import convolutions
from tests.support.efforts import verified
from tests.support.fuzzing import fuzz
from tests.support.lowered import joint_problem
from tests.support.networks import GraphBuilder, residual_chain, staged_machine, workload
from tests.support.onnx_builder import constants, graph_of
from tests.support.summed_networks import copying, product

import loadmaster as lm
from loadmaster.cost.base import job_times
from loadmaster.planning.cutting.fitting import fitted
from loadmaster.planning.decisions import Stays, most_alive
from loadmaster.planning.goal import require_room
from loadmaster.planning.joint.problem import JointOptions
from loadmaster.planning.problem import replay
from loadmaster.targets.hardware import CopyEngine
from loadmaster.workloads.graph import OpClass, TensorKind
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork

pytestmark = pytest.mark.slow


# A maker that has been halved for one reader is not halved again.
@example(cores=3, rows=12, room=2048, batches=1, cut="auto", objective="energy")
@fuzz(6)
@given(
    cores=st.integers(1, 4),
    rows=st.sampled_from([6, 8]),
    room=st.sampled_from([1152, 1536, 2**14]),
    batches=st.integers(1, 2),
    cut=st.sampled_from(["auto", "none"]),
    objective=st.sampled_from(["throughput", "latency", "energy", "edp"]),
)
def test_plans_hold_whatever_the_cores_and_the_room(cores, rows, room, batches, cut, objective):
    machine = copying(cores, room)
    options = {"mini_batches": batches, "cut": cut, "objective": objective}
    verified([convolutions(rows=rows)], machine, **options)


def test_small_pieces_let_copies_and_jobs_overlap_however_large_the_memory_is():
    networks = [lm.load("onnx:squeezenet", precision="int8")]
    for room in ("3 MiB", "1 GiB"):
        machine = lm.target("gpu-pcie", f"hbm.capacity={room}")
        cut, whole = (
            verified(networks, machine, mini_batches=2, cut=cut).metrics.makespan.value
            for cut in ("auto", "none")
        )
        assert cut < 0.9 * whole


def test_two_cores_are_faster_than_one_and_inputs_that_come_later_are_awaited():
    chains = [residual_chain(2, "one", 64), residual_chain(2, "two", 64)]
    one, three = (
        verified(chains, copying(cores, 2**20), cut="none").metrics.makespan.value
        for cores in (1, 3)
    )
    assert three < 0.7 * one
    plan = verified([residual_chain(1)], copying(2), mini_batches=2, periods={"chain": 1e-3})
    assert plan.mini_batches[1].release == pytest.approx(1e-3)


@pytest.mark.parametrize("cut", ["auto", "none"])
def test_copies_that_run_one_at_a_time_bound_the_makespan(cut):
    machine = copying(2, 2**20)
    rates = (2e8, 1e8)
    slow = replace(machine, copy=CopyEngine(rates, rates))
    plan = verified([convolutions()], slow, cut=cut)
    crossing = [
        sum(each.bytes for each in plan.tensors if is_needed(each))
        for is_needed in (lambda each: each.is_output, lambda each: not each.producer)
    ]
    least = sum(size / rate for size, rate in zip(crossing, rates, strict=True))
    assert plan.metrics.makespan.lower_bound >= 0.999 * least
    assert plan.metrics.makespan.value < 1.1 * least


def test_cuts_for_less_room_serve_where_those_for_all_of_it_leave_gaps():
    nodes, image = "y = Conv<pads=[1,1,1,1]>(x, w)", "float[1,8,28,28] x"
    graph = graph_of(nodes, image, "y", {"w": (16, 8, 3, 3)})
    plan = verified([graph], copying(2, 4736), cut="none")
    assert "the plan for a smaller machine" in str(plan.notes)


@st.composite
def orders(draw):
    tasks = draw(st.integers(1, 10))
    return workload(
        [tuple(a for a in range(b) if draw(st.integers(0, 2)) == 0) for b in range(tasks)]
    )


@given(orders(), st.integers(1, 12))
@fuzz(150)
def test_operands_are_there_when_needed_and_fit(jobs, lines):
    machine = staged_machine(64 * lines)
    if max(64 * (len(job.reads) + 1) for job in jobs.jobs) > 64 * lines:
        with pytest.raises(lm.CapacityError, match=r"required.*available.*in excess"):
            require_room(jobs, machine)
        return
    require_room(jobs, machine)
    problem = joint_problem(jobs, machine)
    found = problem.evaluate(np.arange(len(jobs.jobs), dtype=np.int64), JointOptions())
    schedule, placement, timeline = problem.decisions(found)
    stays = Stays.of(jobs, placement, timeline, 1)
    assert most_alive(stays.start, stays.end, stays.sizes) <= 64 * lines
    for index, job in enumerate(jobs.jobs):
        for operand in job.reads:
            tensor = jobs.tensor_index[operand.tensor]
            assert any(
                stay.tensor == tensor and stay.memory == 1 and index in stay.users
                for stay in placement.residences
            )
    replay(jobs, job_times(problem.table, machine, placement.used), machine, schedule, placement)


def test_outputs_on_their_way_out_are_waited_for_where_there_is_no_other_room():
    """Two jobs read one input and write an output each; with room for one output at a time, the
    second waits for the first's copy."""
    build = GraphBuilder()
    build.tensor("x", (100,), TensorKind.INPUT)
    for name in ("a", "b"):
        build.tensor(name, (1920,))
        build.op("Widen", OpClass.MOVEMENT, ["x"], name)
    verified([build.graph("a", "b")], staged_machine(2048))
    with pytest.raises(lm.CapacityError):
        verified([build.graph("a", "b")], staged_machine(1984))


@pytest.mark.parametrize("room", [1900, 2048, 2500])
def test_pieces_are_as_small_as_the_room_demands_and_no_smaller(room):
    machine = copying(1, room)
    network = DivisibleNetwork.of(convolutions(), machine)
    cuts = fitted(network, machine, room)
    work = lm.lower([network.source], machine, cuts=[Cuts(cuts)])
    size = {tensor.name: machine.fast.padded(tensor.bytes) for tensor in work.tensors}
    for job in work.jobs:
        assert sum(size[name] for name in {o.tensor for o in (*job.reads, *job.writes)}) <= room
    assert all(cut.tiles == 1 for cut in fitted(network, machine, 2**20))
    assert any(isinstance(cut, Grid) for cut in cuts)


def test_a_machine_on_which_no_piece_fits_is_refused():
    said = "needs all its operands in scratchpad: .* required, 256 B available"
    with pytest.raises(lm.CapacityError, match=said):
        verified([residual_chain(1)], copying(2, 256))


def test_a_refusal_names_the_operator_that_cannot_be_cut():
    """And not the largest, which can."""
    graph = graph_of(
        "r = Relu(x); p, q = Split<axis=1, num_outputs=2>(r); y = Mul(p, q)",
        "float[1,4,36,23] x",
        "y",
    )
    with pytest.raises(lm.CapacityError, match=r"Split.* needs all its operands"):
        verified([graph], copying(2, 8192))


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Slice(x, low, high, axis)",
        "p = Slice(x, low, high, axis); y = MaxPool<kernel_shape=[3, 3]>(p)",
    ],
)
def test_an_input_of_which_a_part_is_read_is_cut(nodes):
    graph = graph_of(nodes, "float[1,8,36,23] x", "y", constants(low=[3], high=[30], axis=[2]))
    plan = verified([graph], copying(2, 8192))
    assert sum(tensor.storage == "x" for tensor in plan.tensors) > 1
    assert lm.verify_against(plan, [graph], plan.target) == ()


@pytest.mark.parametrize("room", [12_000, 2**14])
@pytest.mark.parametrize("cores", [1, 3])
def test_where_nothing_is_used_in_main_memory_what_leaves_is_copied_once_and_fetched_after_that(
    room, cores
):
    machine = copying(cores, room)
    work = lm.lower([residual_chain(3)], machine, mini_batches=2)
    problem, jobs = joint_problem(work, machine), len(work.jobs)
    schedule, placement, timeline = problem.decisions(
        problem.evaluate(np.arange(jobs), JointOptions())
    )
    times = job_times(problem.table, machine, placement.used)
    out = {
        copy.tensor: jobs + number
        for number, copy in enumerate(placement.copies)
        if copy.memory == 0
    }
    assert len(out) == sum(copy.memory == 0 for copy in placement.copies)
    assert set(out) >= {t for t, tensor in enumerate(work.tensors) if tensor.is_output}
    for copy in placement.copies:
        if copy.memory == 1 and work.tensors[copy.tensor].producer >= 0:
            assert out[copy.tensor] in copy.after
    assert not placement.used[0].any()
    assert replay(work, times, machine, schedule, placement).makespan <= timeline.makespan


@pytest.mark.parametrize("cut", ["auto", "none"])
def test_sums_of_which_one_takes_more_than_the_fast_memory_are_added_up_in_parts(cut):
    """Both factors of a single element are 12,000 bytes: chains of pieces keep their sums on chip,
    and bring in each factor once."""
    machine, graph = copying(2, 4096), product(1, 6000, 2)
    plan = verified([graph], machine, cut=cut)
    sums = {tensor.name for tensor in plan.tensors if tensor.summed}
    assert sums
    assert not any(place.memory == "dram" for place in plan.allocations if place.tensor in sums)
    assert plan.metrics.traffic["dram"].value == sum(
        tensor.bytes for tensor in plan.tensors if tensor.kind != "activation" or tensor.is_output
    )


def test_sums_stay_whole_where_other_cuts_make_operators_fit():
    """Columns of the weights, though there are hundreds of them; two of these pieces fit."""
    plan = verified([product(1, 700, 300)], copying(2, 4096))
    assert len(plan.jobs) > 60
    assert not any(job.summed for job in plan.jobs)


def test_the_smallest_pieces_of_a_large_tensor_are_not_all_made():
    """A billion pieces of one element."""
    graph = graph_of("y = Relu(x)", "float[1,64,4096,4096] x", "y")
    network = DivisibleNetwork.of(graph, target := copying(1, 2**30))
    (cut,) = fitted(network, target, 2**29)
    assert 8 <= cut.tiles <= 32
