"""Every command that shows costs says what they rest on, in its table, its JSON and its report."""

import pytest
from tests.support.command_line import printed, ran, unwrapped

import loadmaster as lm
from loadmaster.targets.load import source_text

pytestmark = pytest.mark.slow

CALIBRATION = f"""
[calibration]
base = "x"
measured = "times.csv"
sha256 = "{"0" * 64}"
rows = 7
error_before = 0.5
error_after = 0.1
"""


@pytest.fixture(params=["estimated", "calibrated"])
def labelled(request, tmp_path):
    """A label, and the files of an NPU and of a machine with two memories whose costs have it."""
    more = CALIBRATION if request.param == "calibrated" else ""
    npu, server = tmp_path / "npu.toml", tmp_path / "server.toml"
    npu.write_text(source_text("edge-npu") + more)
    server.write_text(source_text("optane-server") + more)
    return request.param, npu, server


def test_plans_mappings_placements_and_sweeps_carry_the_label_of_their_target(
    labelled, tmp_path, monkeypatch
):
    label, npu, server = labelled
    monkeypatch.chdir(tmp_path)
    plan = ("plan onnx:squeezenet --target", npu, "--precision int8 --cut none")
    assert printed(plan)["costs"]["label"] == label
    assert f"costs: {label} (" in unwrapped(ran(plan))
    made = tmp_path / "loadmaster-plan"
    assert f"costs: {label} (" in (made / "report.html").read_text()
    assert [part.label for part in lm.Plan.load(made / "plan.json").costs] == [label]
    mapped = ("map onnx:squeezenet --target", npu, "--precision int8 --samples 100")
    placed = ("place onnx:squeezenet --target", server, "--fast 60% --mode static")
    for command in (mapped, placed):
        assert printed(command)["costs"]["label"] == label
        assert ran(command).stdout.startswith(f"{label.capitalize()} ")
    ran(placed, "--out placed")
    assert f"costs: {label} (" in (tmp_path / "placed" / "report.html").read_text()
    sweep = "--sweep bandwidth=20GB/s --workers 1"
    assert printed(plan, sweep)["costs"]["label"] == label


def test_tables_of_ones_own_are_measured_and_mixtures_are_as_weak_as_their_weakest(tmp_path):
    jobs, table = tmp_path / "two.csv", tmp_path / "costs.csv"
    jobs.write_text("K,C,Y,X,R,S,type\n64,64,56,56,1,1,1\n1000,512,1,1,1,1,0\n")
    rows = [f"two/{job},{core},1e-4,1e9" for job in (0, 1) for core in ("ws0", "ws1", "ws2", "lb")]
    table.write_text("\n".join(["job,core,latency_s,bandwidth_bytes_per_s", *rows]))
    mapped = ("map", jobs, "--target edge-npu --samples 100")
    assert printed(mapped, "--cost", table)["costs"] == {
        "label": "measured",
        "from": [{"label": "measured", "source": str(table), "count": 2}],
    }
    ready = tmp_path / "ready.csv"
    ready.write_text(table.read_text().replace("two", "one"))
    mixed = printed("map", ready, jobs, "--target edge-npu --samples 100")["costs"]
    assert mixed["label"] == "estimated"
    assert [(part["label"], part["count"]) for part in mixed["from"]] == [
        ("measured", 2),
        ("estimated", 2),
    ]


def test_the_model_of_the_paper_does_not_heed_a_calibration(tmp_path):
    (tmp_path / "s2.toml").write_text(source_text("m3e-s2") + CALIBRATION)
    target, jobs = lm.target(tmp_path / "s2.toml"), lm.read_job_list("fixtures/jobs.csv")
    assert [part.label for part in lm.analyse(jobs, target).provenance] == ["calibrated"]
    assert [part.label for part in lm.analyse(jobs, target, "maestro").provenance] == ["estimated"]
