"""Plans of random networks on random machines, with random options, against both verifiers; ``LOADMASTER_FUZZ=100`` tries more."""

import pytest
from tests.support.plan_problems import problem
from tests.support.problems import EFFORT

import loadmaster as lm
from loadmaster.core.errors import CapacityError
from loadmaster.planning.plan import Plan
from loadmaster.planning.plan_json import plan_from_text, plan_to_text

pytestmark = pytest.mark.usefixtures("little_effort")


@pytest.mark.slow
@pytest.mark.parametrize("group", range(4))
def test_whatever_is_planned_holds_for_its_networks_and_its_machine(group: int) -> None:
    planned = 0
    for seed in range(group, int(48 * EFFORT), 4):
        graphs, target, options = problem(seed)
        try:
            plan = lm.plan(graphs, target, **options)
        except CapacityError:
            continue
        planned += 1
        assert lm.verify_against(plan, graphs, target) == (), seed
        assert plan_from_text(plan_to_text(plan), "plan.json", Plan) == plan, seed
        figures = plan.metrics
        costs = [figures.makespan, figures.energy, *figures.traffic.values(), *figures.latency.values()]
        assert all(cost.lower_bound <= cost.value for cost in costs), seed
        assert (plan.status == "optimal") == (plan.objective.value == plan.objective.lower_bound and not plan.missed), seed
    assert planned
