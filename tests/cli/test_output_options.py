"""What every command has in common: `--out`, `--json`, `--quiet`, `--no-report`, groups of options,
defaults in words, completion."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.support.command_line import names, printed, ran, refused, run
from tests.support.needs import FIXTURES
from tests.support.onnx_builder import model, save
from tests.support.tables import cases
from tests.support.user_files import BUFFERS, COSTS

from loadmaster.cli.main import app

MAP = "map costs.csv --bandwidth '8 GB/s'"
ALLOCATE = "allocate buffers.csv"
INSPECT = "inspect onnx:squeezenet"
PLACE = "place onnx:squeezenet --target optane-server --strategy all-slow"
PLAN = "plan onnx:squeezenet --target edge-npu --precision int8 --cut none"
WRITTEN = {
    MAP: ("mapping.json", "report.html"),
    ALLOCATE: ("packed.csv", "report.html"),
    INSPECT: ("network.json", "report.html"),
    PLACE: ("placement.json", "report.html"),
    PLAN: ("plan.json", "report.html", "trace.json.gz"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where commands run, with files of costs and of buffers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "costs.csv").write_text(COSTS)
    (tmp_path / "buffers.csv").write_text(BUFFERS)
    return tmp_path


every_writer = pytest.mark.parametrize("command", WRITTEN, ids=lambda each: each.split()[0])


def silent(*command):
    """Fail unless a command succeeds and says nothing."""
    done = run(*command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@every_writer
def test_json_alone_writes_nothing_and_names_no_file(command, folder):
    assert printed(command, "--quiet")["files"] == []
    assert names(folder) == ["buffers.csv", "costs.csv"]


@pytest.mark.slow
@every_writer
def test_out_takes_a_folder_and_no_report_leaves_out_what_is_looked_at(command, folder):
    done = ran(command, "--out new/out --json")
    files = [str(Path("new/out") / name) for name in WRITTEN[command]]
    assert json.loads(done.stdout)["files"] == files
    assert names(folder / "new" / "out") == sorted(WRITTEN[command])
    silent(command, "--out data --no-report --quiet")
    assert names(folder / "data") == [WRITTEN[command][0]]


def test_a_file_is_written_under_its_name_and_without_a_page(folder):
    done = run(ALLOCATE, "--out mine.csv")
    assert "wrote mine.csv" in done.stdout
    assert names(folder) == ["buffers.csv", "costs.csv", "mine.csv"]
    silent("verify --buffers mine.csv --quiet")


def test_quiet_does_not_hide_mistakes(folder):
    refused(run("map missing.csv --bandwidth '1 GB/s' --quiet"), "missing.csv")
    (folder / "packed.csv").write_text("id,lower,upper,size,offset\na,0,4,600,0\nb,2,6,300,0\n")
    rejected = run("verify --buffers packed.csv --quiet")
    assert (rejected.returncode, rejected.stdout) == (1, "")
    assert "the packing does not hold; violations: 1" in rejected.stderr


@every_writer
def test_an_empty_path_is_not_this_folder(command, folder):
    # A shell's variable that is not set.
    before = sorted(folder.iterdir())
    refused(run(command, "--out="), "--out: give a path; . is this folder")
    assert sorted(folder.iterdir()) == before


def test_names_that_are_too_long_or_not_utf_8(folder):
    for command in (
        f"verify {'x' * 300}",
        f"inspect {'x' * 300}.onnx",
        f"{PLAN} --out {'x' * 300}",
    ):
        refused(run(command), "File name too long")
    name = os.fsdecode(b"caf\xe9.onnx")
    save(folder, model("y = Relu(x)", "float[8] x", "y"), name)
    ran(f"plan {name} --target edge-npu --effort quick --no-report --out out")
    assert json.loads((folder / "out/plan.json").read_text())["networks"][0]["name"] == r"caf\udce9"
    ran(f"verify out --against {name}")


@pytest.mark.parametrize(
    ("command", "said"),
    cases(f"""
        map cost.csv --bandwidth '8 GB/s' | did you mean costs.csv?
        allocate bufers.csv | did you mean buffers.csv?
        {PLACE} --mode snc | there is no mode 'snc': did you mean sync?
    """),
)
def test_a_misspelt_file_or_mode_is_met_half_way(command, said, folder):
    refused(run(command), said)


def commands(group=None, path=""):
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


ALL = dict(commands())


@pytest.mark.parametrize("name", ALL)
def test_options_have_groups_and_say_what_happens_without_them(name):
    for option in ALL[name].params:
        if option.param_type_name == "option" and option.name != "help":
            assert option.rich_help_panel is not None, option.name
            if option.default in (None, ()) and not option.required:
                said = "Default: " in option.help or "May be repeated." in option.help
                assert said, option.name


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, command in ALL.items()
        if any(option.name == "as_json" for option in command.params)
    ],
)
def test_whoever_prints_json_can_be_quiet_and_calls_its_place_out(name):
    spelt = {spelling for option in ALL[name].params for spelling in option.opts}
    assert "--quiet" in spelt
    assert "--output" not in spelt
    if "--out" in spelt and "export" not in name and name not in ("calibrate", "profile"):
        assert "--no-report" in spelt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("loadmaster plan --target edge", "edge-npu"),
        ("loadmaster map x --strategy ann", "annealing"),
        ("loadmaster pl", "plan"),
        ("loadmaster plan --obj", "--objective"),
    ],
)
def test_the_shell_completes_commands_options_targets_and_strategies(line, words):
    environment = os.environ | {
        "_LOADMASTER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    code = "import sys; sys.argv = ['loadmaster']; from loadmaster.cli.main import main; main()"
    done = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert words in done.split(), done


@pytest.mark.slow
def test_two_plans_are_compared(folder):
    for size in ("512KiB", "4MiB"):
        options = f"--set scratchpad.capacity={size} --out {size} --no-report --quiet"
        ran(PLAN, options)
    compare = "report 512KiB/plan.json 4MiB/plan.json"
    done = ran(compare, "--out out")
    assert "wrote out/comparison.html" in done.stdout
    # A folder stands for the plan in it, and one plan is drawn alone.
    ran("verify 4MiB")
    ran("report 4MiB --out one")
    assert names(folder / "one") == ["report.html", "trace.json.gz"]
    refused(run("report 4MiB --json"), "give OTHER.json")
    assert "Peak of scratchpad" in done.stdout
    shown = printed(compare)
    peaks = shown["figures"]["peak.scratchpad"]
    assert peaks["first"] <= 2**19 < peaks["second"] <= 2**22
    assert shown["files"] == []
    assert not (folder / "loadmaster-report").exists()
    refused(run("report 512KiB/plan.json 4MiB/plam.json"), "did you mean 4MiB/plan.json?")


@pytest.mark.slow
def test_no_command_writes_over_its_input(tmp_path):
    """By its name, by another path, or by a link; an old output is replaced as ever."""
    model = tmp_path / "net.tflite"
    model.write_bytes((FIXTURES / "wake-words.tflite").read_bytes())
    before = model.read_bytes()
    (tmp_path / "link.tflite").hardlink_to(model)
    (tmp_path / "soft.tflite").symlink_to(model)
    export = ("export tflite", model, "--scratch none --out")
    for out in ("net.tflite", "../" + tmp_path.name + "/net.tflite", "link.tflite", "soft.tflite"):
        said = "is an input of this command, and would be overwritten"
        refused(run(export, tmp_path / out), said)
        assert model.read_bytes() == before
    for _ in range(2):
        ran(export, tmp_path / "planned.tflite")


# Options of networks are the same on every command that reads one.


SHARED = {"batch", "dims", "precision"}


def test_commands_with_one_of_them_have_all():
    known = {name: {each.name for each in command.params} for name, command in ALL.items()}
    reading = {name: SHARED - own for name, own in known.items() if SHARED & own}
    assert {"place", "profile", "run", "plan", "inspect", "verify"} <= reading.keys()
    assert not {name: lacking for name, lacking in reading.items() if lacking}


@pytest.fixture
def open_dims(tmp_path):
    """A product with two symbolic dimensions."""
    product = model("y = MatMul(x, w)", "float[batch,length,64] x", "y", "float[64,32] w")
    return save(tmp_path, product)


def test_place_takes_sizes_and_a_precision(open_dims):
    words = ("place", open_dims, "--target optane-server --json --batch 2")
    refused(run(words), "--dim length=N")
    peaks = []
    for more in ("", "--precision int8"):
        done = ran(words, "--dim length=100", more)
        peaks.append(json.loads(done.stdout)["tensors"])
    whole, narrow = (sum(t["bytes"] for t in tensors if t["kind"] == "input") for tensors in peaks)
    # Pieces are whole pages.
    assert 2 * 100 * 64 * 4 <= whole < 2 * 100 * 64 * 5
    assert 2 * 100 * 64 <= narrow < 2 * 100 * 64 * 2


FACTORY = """
import torch

def net(batch=2, width=8):
    return torch.nn.Linear(width, 4), torch.zeros(batch, width)
"""


@pytest.fixture
def factory(tmp_path, monkeypatch):
    pytest.importorskip("torch", exc_type=ImportError)
    (tmp_path / "sized_networks.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "times.sqlite"))
    return "torch:sized_networks:net"


def test_sizes_are_arguments_of_torch_factories(factory):
    words = ("inspect", factory, "--json --batch 3 --dim")
    assert printed(words, "width=16")["macs"] == 3 * 16 * 4
    said = "got an unexpected keyword argument 'length'): --batch N and --dim NAME=N give its"
    refused(run(words, "length=16"), said)


@pytest.mark.parametrize("command", ["profile", "run --fast 1GiB", "plan --target edge-npu"])
def test_precisions_of_torch_factories_are_theirs(command, factory):
    refused(run(command, factory, "--precision fp16"), "cast what the factory makes")


def test_profile_takes_sizes(factory):
    assert printed("profile", factory, "--dim width=16")["measured"] > 0
