"""One record of effort is the budget of every search."""

import pytest
from tests.mapping.test_map_jobs import jobs
from tests.support.problems import crowd
from tests.support.sequences import training

import loadmaster as lm
from loadmaster.core.effort import Effort

BUFFERS = crowd(300, 400, 80, 1000)
STEP = training(6, in_place=True, bandwidth=100.0)
SEARCHES = {
    "allocate": lambda effort: lm.allocate(BUFFERS, effort=effort).peak,
    "banks": lambda effort: (
        lm.allocate_banks(BUFFERS, [lm.Bank("sram", 20_000), lm.Bank("dram")], effort=effort).cost
    ),
    "map": lambda effort: lm.map_jobs(jobs(), 1e9, effort=effort).makespan,
    "wait": lambda effort: (
        lm.map_dependent_jobs(
            jobs(), 1e9, [() if j < 3 else (j - 3,) for j in range(30)], effort=effort
        ).makespan
    ),
    "place": lambda effort: lm.place(STEP, "50%", mode="async", effort=effort).seconds,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_takes_an_effort_by_name_or_as_a_record(name):
    search = SEARCHES[name]
    assert search("quick") == search(Effort.QUICK) > 0
    with pytest.raises(lm.LoadmasterError, match="effort 'quik': did you mean quick"):
        search("quik")
    with pytest.raises(lm.LoadmasterError, match=r"choose one of quick, normal, thorough$"):
        search("fast")


@pytest.mark.slow
@pytest.mark.parametrize(("effort", "most"), [("test", 500), ("quick", 2_500), ("normal", 10_000)])
def test_an_effort_is_a_share_of_what_strategies_do_by_themselves(effort, most):
    taken = lm.map_jobs(jobs(), 1e9, strategy="magma", effort=effort).samples
    assert 0.8 * most <= taken <= most


@pytest.mark.parametrize("wrong", [{"work": 0.0}, {"packings": 0}, {"evaluations": -1}])
def test_budgets_that_make_no_sense_are_refused(wrong):
    with pytest.raises(lm.LoadmasterError, match="effort 'mine'"):
        Effort(
            **{"name": "mine", "evaluations": 1, "packings": 1, "nodes": 1, "pieces": 1}
            | {"work": 1.0}
            | wrong
        )
