"""Plans of random networks on random machines, with random options, against both verifiers;
``LOADMASTER_FUZZ=100`` tries more."""

import pytest
from tests.support.efforts import SEPARATE
from tests.support.fuzzing import FUZZ
from tests.support.onnx_builder import graph_of, node
from tests.support.plan_problems import problem

import loadmaster as lm
from loadmaster.core.errors import CapacityError
from loadmaster.planning.plan import Plan, plan_from_text, plan_to_text


@pytest.mark.slow
@pytest.mark.parametrize("group", range(4))
def test_whatever_is_planned_holds_for_its_networks_and_its_machine(group):
    planned = 0
    for seed in range(group, int(48 * FUZZ), 4):
        graphs, target, options = problem(seed)
        try:
            plan = lm.plan(graphs, target, **options)
        except CapacityError:
            continue
        planned += 1
        assert lm.verify_against(plan, graphs, target) == (), seed
        assert plan_from_text(plan_to_text(plan), "plan.json", Plan) == plan, seed
        figures = plan.metrics
        costs = [
            figures.makespan,
            figures.energy,
            *figures.traffic.values(),
            *figures.latency.values(),
        ]
        assert all(cost.lower_bound <= cost.value for cost in costs), seed
        assert (plan.status == "optimal") == (
            plan.objective.value == plan.objective.lower_bound and not plan.missed
        ), seed
    assert planned


def test_a_convolution_of_which_a_piece_sees_padding_alone_is_planned():
    # The only row of the result lies in the padding above the only row of the operand.
    attributes = {
        "pads": [2, 0, 0, 0],
        "strides": [3, 4],
        "dilations": [3, 1],
        "group": 4,
        "kernel_shape": [1, 3],
    }
    conv = node("Conv", ["x", "w"], ["y"], **attributes)
    graph = graph_of([conv, "z = Relu(y)"], "float[1,8,1,5] x", "z", "float[8,2,1,3] w")
    target = lm.target("optane-server")
    plan = lm.plan([graph], target, effort=SEPARATE)
    assert any("x" in operand.tensor for job in plan.jobs for operand in job.reads)
    assert lm.verify_against(plan, [graph], target) == ()


def test_an_operator_of_which_nothing_is_known_nor_needed_is_planned():
    # Shapes that do not go together, of an operator whose result nobody reads.
    odd = "odd = Sub(y, w)"
    weights = {"k": (8, 8, 1, 1), "w": (6,)}
    graph = graph_of(["y = Conv<kernel_shape=[1, 1]>(x, k)", odd], "float[1,8,7,7] x", "y", weights)
    target = lm.target("edge-npu")
    plan = lm.plan([graph], target, effort=SEPARATE)
    assert lm.verify_against(plan, [graph], target) == ()
