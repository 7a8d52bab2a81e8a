"""Operators in chains of pieces, each of which adds a part of what the operator sums over."""

import pytest
from tests.support.lowered import check_pieces, planned
from tests.support.networks import npu
from tests.support.summed_networks import copying, in_chains, network

import loadmaster as lm
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.grid import divisible
from loadmaster.workloads.lowering.single_assignment import without_updates


@pytest.mark.parametrize("seed", range(8))
def test_plans_of_random_networks_in_chains_hold(seed):
    """What the verifiers work out by themselves agrees with what pieces read, add and leave, and
    with what that costs."""
    build, graph = network(seed)
    workload = check_pieces(graph, in_chains(graph, build.generator), copying())
    assert sum(job.macs for job in workload.jobs) == graph.macs


def test_a_machine_on_which_sums_need_not_be_in_parts_has_no_such_plans():
    """The plan holds, but is none that may be made of the network on it, for bounds would not hold
    for it."""
    build, graph = network(4)
    plan = planned(lm.lower([graph], npu(), cuts=[in_chains(graph, build.generator)]), npu())
    assert lm.verify(plan) == ()
    assert {violation.rule for violation in lm.verify_against(plan, [graph], npu())} == {"cut"}


def test_only_products_of_one_group_divide_their_sums_and_only_where_that_is_asked_for():
    """Those whose input is a concatenation that is not made read parts of it, which do not."""
    single = without_updates(lm.load("onnx:squeezenet", precision="int8"))
    for group in fuse(single):
        form, plain = divisible(single, group, sums=True), divisible(single, group)
        assert plain is None or plain.summed == 0
        if form is None:
            continue
        whole = bool(group.nests) and group.nests[0].input in form.uses
        assert form.summed == (group.nests[0].c if whole else 0), group.main.name
    single = without_updates(lm.load("onnx:shufflenet", precision="int8"))
    found = [
        (group.nests[0].groups, divisible(single, group, sums=True))
        for group in fuse(single)
        if group.nests
    ]
    assert {groups > 1: form.summed > 0 for groups, form in found if form is not None} == {
        True: False,
        False: True,
    }
