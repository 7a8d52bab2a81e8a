"""The command line: one JSON object, one line per mistake, exit codes, nothing half-written."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from tests.support.command_line import names, printed, ran, refused, run, unwrapped
from tests.support.edits import SHARED, job, named, without
from tests.support.needs import FIXTURES
from tests.support.onnx_builder import model, save
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.cli import main, start
from loadmaster.planning import planner
from loadmaster.workloads.frontends import load

SQUEEZENET = "plan onnx:squeezenet --target edge-npu"
QUICK = f"{SQUEEZENET} --precision int8 --cut none"
FILES = ["plan.json", "report.html", "trace.json.gz"]


def test_a_page_is_of_a_plan_that_holds(tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    SHARED.save(good)
    job("net/fc@0", operators=()).save(bad)
    for files in ((bad,), (good, bad)):
        result = run("report", *files, "--out", tmp_path / "page")
        refused(result, "bad.json: the plan does not hold: complete:", "no job does operator")
    assert names(tmp_path) == ["bad.json", "good.json"]
    ran("report", good, good, "--out", tmp_path / "page")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The JSON object of a plan, and where its files are."""
    out = tmp_path_factory.mktemp("plans") / "new" / "folder"
    return printed(QUICK, "--seed 5 --out", out), out


def test_plan_prints_exactly_one_json_object_with_what_is_promised(planned):
    summary, out = planned
    assert summary["seed"] == 5
    assert summary["memories"]["scratchpad"].keys() >= {"peak", "capacity"}
    makespan, traffic = summary["makespan"], summary["traffic"]["dram"]
    assert 0 < makespan["lower_bound"] <= makespan["value"]
    assert 0 < traffic["lower_bound"] <= traffic["value"]
    assert summary["violations"] == []
    assert sorted(Path(file).name for file in summary["files"]) == names(out) == FILES


def test_a_written_plan_verifies_and_a_broken_one_does_not(planned, tmp_path):
    _, out = planned
    good = ran("verify", out / "plan.json")
    assert "the plan holds" in good.stdout
    broken = without(SHARED, "jobs", named("net/conv@0")).save(tmp_path / "broken.json")
    assert "does not hold" in ran("verify", broken, code=1).stderr
    assert printed("verify", broken, code=1)["valid"] is False


@pytest.mark.slow
def test_plan_says_what_it_was_made_for_and_what_came_of_deadlines(tmp_path):
    command = (QUICK, "--mini-batches 2 --out", tmp_path)
    summary = printed(
        command, "--objective energy --period squeezenet=1ms --deadline 'squeezenet=900 us'"
    )
    objective, energy = summary["objective"], summary["energy"]
    assert objective["name"] == "energy"
    assert objective["value"] == energy["value"] >= energy["lower_bound"] > 0
    assert energy["by"].keys() == {"dram", "scratchpad", "ws0", "ws1", "ws2", "lb"}
    assert (summary["missed"], summary["lateness"]) == (0, 0.0)
    assert [batch["release"] for batch in summary["mini_batches"]] == [0.0, 0.001]
    late = ran(command, "--deadline squeezenet=1us", code=3)
    assert "2 of 2 mini-batches miss their deadlines" in late.stderr
    shown = unwrapped(late)
    for words in (
        "its deadline of 1.00 us is impossible",
        *("squeezenet", "Makespan", "dram", "estimates", "report.html"),
    ):
        assert words in shown
    ran("verify", tmp_path / "plan.json")
    page = (tmp_path / "report.html").read_text()
    assert "missed" in page
    assert "<h2>Energy</h2>" in page


def test_targets_lists_one_line_each_and_prints_the_toml_of_one():
    lines = run("targets").stdout.splitlines()
    assert {"edge-npu", "m3e-s1", "gpu-pcie"} <= {line.split()[0] for line in lines}
    assert '[[cores]]\nname = "ws"' in run("targets edge-npu").stdout


@pytest.mark.slow
def test_inspect_shows_operators_macs_and_bytes():
    result = run("inspect onnx:resnet50 --json --precision int8 --batch 2")
    report = json.loads(result.stdout)
    assert report["macs"] == pytest.approx(2 * 4.09e9, rel=0.01)
    assert report["weight_bytes"] == pytest.approx(25.6e6, rel=0.01)
    assert report["operators"]["Conv"]["count"] == 53
    assert report["not_understood"] == {}


def test_inspect_calls_free_only_those_operators_of_a_kind_that_are():
    """A lookup in a table of weights costs something, and one in a shape, of the same kind, does
    not."""
    command = ("inspect", FIXTURES / "traced-bert-opset14.onnx.gz", "--dim batch=2 --dim steps=16")
    gathers = printed(command)["operators"]["Gather"]
    assert gathers["classes"] == {"movement": 3, "shape": 11}
    assert gathers["count"] == 14
    assert gathers["bytes"] > 2 * 16 * 32 * 4
    rows = [line.split()[:2] for line in run(command).stdout.splitlines() if line]
    kinds = [row for row in rows if row[0] in ("Gather", "Mul")]
    assert sorted(kinds) == [
        ["Gather", "movement"],
        ["Gather", "shape"],
        ["Mul", "elementwise"],
        ["Mul", "shape"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "size", "verify", "targets", "inspect", "allocate"])
def test_every_command_has_an_example_in_its_help(command):
    assert "Example:" in run(command, "--help").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    cases(f"""
        plan missing.onnx --target edge-npu | missing.onnx
        plan onnx:nothing --target edge-npu | onnx:nothing | resnet50
        plan onnx:squeezenet --target no-such | no-such | edge-npu
        {SQUEEZENET} --set dram.speed=3 | dram.speed
        {SQUEEZENET} --dim batch | --dim | NAME=N
        {SQUEEZENET} --dim batch=0 | --dim | at least 1
        {SQUEEZENET} --precision int7 | int7 | int8
        plan onnx:squeezenet | --target
        {SQUEEZENET} --batch 0 | --batch
        {SQUEEZENET} --time-limit '5 parsecs' | parsecs
        {SQUEEZENET} --seed {2**64} | --seed
        {SQUEEZENET} --set 'dram.bandwidth=1 B/s' | minutes
        {SQUEEZENET} --deadline 5ms | --deadline '5ms' | NAME=S
        {SQUEEZENET} --period squeezenet=soon | 'soon' | time
        {SQUEEZENET} --deadline resnet=5ms | 'resnet' | squeezenet
        {SQUEEZENET} --objective beauty | 'beauty' | throughput, latency, energy, edp
        {SQUEEZENET} --network squeezenet | latency
        no-such-command | no-such-command
        {QUICK} --set dram.capacity=1MiB | dram | take | available | in excess
        plan onnx:squeezenet --target gpu-pcie --set hbm.capacity=4KiB | \
            hbm | required | available | in excess
        verify missing.json | missing.json
        verify . | plan.json: cannot be read: No such file
        targets no-such | no-such
        inspect README.md | README.md
        plam | Did you mean 'plan'
        plan onnx:squeezenet --taget edge-npu | --target
        plan onnx:squeezenet --target egde-npu | \
            there is no bundled target 'egde-npu': did you mean edge-npu?
        map onnx:squeezenet --target edge-npu --strategy anealing | did you mean annealing?
    """),
)
def test_a_mistake_is_one_line_and_exit_code_2(row, tmp_path):
    command, *words = row
    (tmp_path / "README.md").write_text("not a network")
    out = "--out out" if command.startswith("plan ") else ""
    refused(run(command, out, cwd=tmp_path), *words)
    assert not (tmp_path / "out").exists()


def test_an_unwritable_out_is_found_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "load", None)
    (tmp_path / "file").write_text("in the way")
    for out in ("file", "file/below"):
        given = tmp_path / out
        refused(
            run(SQUEEZENET, "--out", given), f"--out {given}: cannot be written", "another folder"
        )
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.slow
def test_if_one_file_cannot_be_written_none_is(tmp_path):
    (tmp_path / "report.html").mkdir()
    refused(run(QUICK, "--out", tmp_path), "report.html")
    assert names(tmp_path) == ["report.html"]


def interrupted(result):
    """The usual exit code, and one line."""
    assert (result.returncode, result.stderr) == (130, "loadmaster: interrupted\n")


def python(code, *arguments):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("given", ["--orders 3", "--seed 0"])
def test_options_of_running_a_plan_are_refused_where_none_runs(given):
    for checked in ("plan.json", "--buffers packed.csv"):
        refused(run("verify", checked, given), f"verify: {given.split()[0]} is for", "give --run")


def test_inspect_says_how_many_inputs_it_does_not_list(tmp_path):
    names_of_inputs = [f"x{number}" for number in range(11)]
    inputs = ", ".join(f"float[2] {name}" for name in names_of_inputs)
    file = save(tmp_path, model(f"y = Sum({', '.join(names_of_inputs)})", inputs, "y"))
    shown = ran("inspect", file).stdout
    assert "x7 float32 2" in shown
    assert "x8 float32 2" not in shown
    assert "and 3 more" in shown


@pytest.mark.slow
def test_help_imports_nothing_heavy_and_no_strategy():
    code = """import sys
from loadmaster.cli.main import app
try:
    app()
except SystemExit:
    heavy = {'numpy', 'onnx', 'pydantic', 'bokeh', 'highspy'}
    print([m for m in sys.modules if m in heavy or m.endswith('.auto')])
"""
    assert python(code, "--help").stdout.endswith("\n[]\n")


def test_an_interrupt_while_commands_are_loaded_says_so():
    code = """import sys
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "loadmaster.cli.commands.plan": raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from loadmaster.cli.start import main
main()"""
    interrupted(python(code))


def test_an_interrupt_while_reading_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "load", Mock(side_effect=KeyboardInterrupt))
    interrupted(run(SQUEEZENET, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_ctrl_c_twice_is_ctrl_c(monkeypatch):
    def interrupt(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)

    def say(*words, **options):
        interrupt()
        original(*words, **options)

    original = main.say
    monkeypatch.setattr(load, "load", interrupt)
    monkeypatch.setattr(main, "say", say)
    interrupted(run(SQUEEZENET))


def test_an_interrupt_in_a_callback_whose_errors_are_dropped_comes_again():
    start._interrupt_again(SimpleNamespace(exc_value=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        time.sleep(20)


def test_a_time_limit_counts_from_the_start_of_the_program(monkeypatch):
    """Reading networks is part of it."""
    limits = []

    def plan(*_, time_limit, **__):
        limits.append(time_limit)
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "_begun", time.monotonic())
    monkeypatch.setattr(planner, "plan", plan)
    assert run(QUICK, "--time-limit 100").returncode == 130
    assert 0 < limits[0] < 100


def signalled(sent, when, out):
    """Run `loadmaster plan`, which gets a signal when ``loadmaster.WHEN`` is called."""
    place, _, name = when.rpartition(".")
    module = import_module(f"loadmaster.{place}")
    original = getattr(module, name)

    def call(*arguments, **options):
        os.kill(os.getpid(), sent)
        return original(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, call)
        return run(QUICK, "--out", out)


@pytest.mark.parametrize(
    "when", ["planning.planner.lower", "planning.verify.plan.verify", "report.write.write_report"]
)
@pytest.mark.slow
def test_an_interrupt_once_networks_are_read_still_writes_a_plan(tmp_path, when):
    result = signalled(signal.SIGINT, when, tmp_path)
    assert result.returncode == 0, result.stderr
    assert names(tmp_path) == FILES
    assert lm.verify(lm.Plan.load(tmp_path / "plan.json")) == ()


def test_a_request_to_end_leaves_nothing_behind(tmp_path):
    result = signalled(signal.SIGTERM, "planning.planner.network_bounds", tmp_path / "out")
    assert result.returncode == 143
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_version_and_short_help():
    assert run("--version").stdout == f"loadmaster {lm.__version__}\n"
    assert run("-h").stdout == run("--help").stdout
    assert run("plan -h").stdout == run("plan --help").stdout


@pytest.mark.slow
def test_a_narrow_terminal_cuts_no_figure(tmp_path):
    """Every figure and unit of a wide terminal is there in one of 40 columns."""

    def words(columns):
        shown = run(QUICK, "--out", tmp_path / "o", columns=columns).stdout.split("Planned")[0]
        return sorted(word for word in shown.split() if not word.startswith("wrote"))

    wide = words(200)
    assert wide == words(40)
    assert any(
        word.endswith("OP/s") and "FLOP" not in word for word in wide
    )  # integers are no floating-point operations


@pytest.mark.slow
def test_a_plan_is_checked_against_its_network_and_machine(tmp_path):
    ncf, wide = FIXTURES / "ncf.onnx.gz", FIXTURES / "wide-and-deep.onnx.gz"
    ran("plan", ncf, "--target edge-npu --batch 4 --out", tmp_path)
    verify = ("verify", tmp_path / "plan.json")
    good = ran(verify, "--against", ncf, "--batch 4 --target edge-npu")
    assert "it is one of these networks on edge-npu" in good.stdout
    (tmp_path / "a,b").symlink_to(FIXTURES)
    assert ran(verify, "--against", tmp_path / "a,b" / ncf.name, "--batch 4")
    for more, word in (
        ((ncf, "--batch 8"), "batch"),
        ((ncf, "--batch 4 --precision int8"), "precision"),
        ((ncf, "--batch 4 --target edge-npu --set 'dram.bandwidth=1 GB/s'"), "bandwidth"),
        ((wide, "--batch 4"), "networks"),
        ((f"{ncf},{wide}", "--batch 4"), "networks"),
    ):
        assert word in ran(verify, "--against", more, code=1).stderr
    refused(run(verify, "--target edge-npu"), "--against")
    refused(run(verify, "--against", ncf, "--set 'dram.bandwidth=1 GB/s'"), "--target")
    refused(run(verify, "--against", tmp_path / "none.onnx"), "none.onnx")


def test_an_interrupt_that_another_error_hides_is_one(monkeypatch):
    """Native modules that are being loaded raise an ImportError from it."""

    def plan(*_, **__):
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(planner, "plan", plan)
    result = run(QUICK)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (130, "loadmaster: interrupted")


def test_an_error_of_the_machine_is_one_line(monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/work")
    monkeypatch.setattr("loadmaster.targets.load.bundled", Mock(side_effect=full))
    refused(run("targets"), "No space left on device", "/tmp/work")
