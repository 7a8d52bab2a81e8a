"""Plans whose jobs have the tilings that suit where their operands are: no worse, checked from the
networks, and read back as they were."""

import pytest
from tests.support.efforts import verified

import loadmaster as lm
from loadmaster.planning import cut_selection

SMALL = ["dram.bandwidth=8 GB/s", "cores.ws.buffer=16 KiB", "cores.lb.buffer=16 KiB"]
"""A machine on which tilings of few cycles and of few bytes differ."""


def network():
    return lm.load("onnx:squeezenet", precision="int8")


def plans(monkeypatch, **more):
    """Plans without and with a choice of tilings."""

    def as_it_is(planner, solution):
        return planner, solution

    graph, target = network(), lm.target("edge-npu", SMALL)
    chosen = verified([graph], target, cut="none", **more)
    with monkeypatch.context() as patched:
        patched.setattr(cut_selection, "retiled", as_it_is)
        return verified([graph], target, cut="none", **more), chosen


def test_a_plan_with_tilings_of_its_own_is_faster_and_holds(monkeypatch, tmp_path):
    before, after = plans(monkeypatch)
    assert after.metrics.makespan.value < before.metrics.makespan.value
    assert {job.tiling for job in before.jobs} == {"all streamed"}
    assert len({job.tiling for job in after.jobs}) > 1
    assert lm.Plan.load(after.save(tmp_path / "plan.json")) == after
    values = [step.value for step in after.search]
    assert values == sorted(values, reverse=True)


def test_energy_is_no_higher_either(monkeypatch):
    before, after = plans(monkeypatch, objective="energy")
    assert after.objective.value <= before.objective.value


def test_a_plan_for_stated_energies_holds():
    stated = (
        'cores.ws.energy={ mac_int8 = "0.1 pJ", local = "0 pJ/B", network = "0.1 pJ/B", buffer ='
        ' "1 pJ/B" }'
    )
    usual, frugal = (
        verified([network()], lm.target("edge-npu", more), cut="none") for more in ([], [stated])
    )
    assert frugal.metrics.energy.value < usual.metrics.energy.value
    assert frugal.byte_energy["ws0"] == 1e-12


@pytest.mark.slow
def test_a_plan_that_names_another_tiling_than_it_was_timed_with_is_found_out(
    monkeypatch, tmp_path
):
    _, plan = plans(monkeypatch)
    graph, path = network(), plan.save(tmp_path / "plan.json")
    text = path.read_text()
    for wrong in ("all streamed", "nowhere"):
        path.write_text(text.replace('"tiling":"all near"', f'"tiling":"{wrong}"'))
        changed = lm.Plan.load(path)
        assert changed != plan
        assert lm.verify_against(changed, [graph], plan.target)
