"""Bounds of traffic: what no order of the jobs avoids, and nothing that some plan does."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.support.efforts import TEST
from tests.support.fuzzing import fuzz
from tests.support.networks import GraphBuilder, npu, residual_chain

import loadmaster as lm
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.scheduling.makespan_bound import makespan_bound
from loadmaster.workloads.graph import OpClass, TensorKind
from loadmaster.workloads.lowering.instantiate import lower


def bound_of(graph, scratchpad: int, mini_batches: int = 1):
    machine = npu(2, scratchpad)
    work = lower([graph], machine, mini_batches=mini_batches)
    return makespan_bound(work.jobs, work.tensors, job_table(work, machine), machine)


def test_activations_that_do_not_fit_side_by_side_must_cross_the_link() -> None:
    """Three operators hand on 4 KiB that nothing can cut: one fits into 6 KiB, but not the middle
    one's input and output together."""
    build = GraphBuilder()
    build.tensor("x", (16, 16, 16), TensorKind.INPUT)
    for source, result in (("x", "a"), ("a", "b"), ("b", "y")):
        build.tensor(result, (16, 16, 16))
        build.op("Odd", OpClass.UNKNOWN, [source], result)
    graph = build.graph("y")
    assert bound_of(graph, 2**20).main_bytes == 2 * 4096
    assert bound_of(graph, 6 * 1024).main_bytes == 3 * 4096


def test_mini_batches_share_weights_in_the_bound() -> None:
    graph = residual_chain(2, channels=16, size=16)
    one, four = bound_of(graph, 2**20), bound_of(graph, 2**20, mini_batches=4)
    weights = sum(t.bytes for t in lower([graph], npu()).tensors if t.kind == "weight")
    assert four.main_bytes == 4 * one.main_bytes - 3 * weights


@given(st.integers(1, 3), st.integers(1, 3), st.integers(500, 20000), st.sampled_from([4, 8, 16]))
@fuzz(20)
def test_no_plan_moves_less_or_is_faster_than_its_bound(
    blocks: int, mini_batches: int, scratchpad: int, channels: int
) -> None:
    machine = npu(2, scratchpad)
    machine = replace(machine, main=replace(machine.main, read_bandwidth=1e8, write_bandwidth=1e8))
    plan = lm.plan(
        [residual_chain(blocks, channels=channels, size=8)],
        machine,
        mini_batches=mini_batches,
        effort=TEST,
    )
    assert lm.verify(plan) == ()
    assert plan.metrics.traffic["dram"].lower_bound <= plan.metrics.traffic["dram"].value
    assert plan.metrics.makespan.lower_bound <= plan.metrics.makespan.value
