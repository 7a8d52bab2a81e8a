"""The command line: one JSON object, one line per mistake, exit codes, nothing half-written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command_line import refused, run

import loadmaster as lm

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="module")
def planned(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = tmp_path_factory.mktemp("plans") / "new" / "folder"
    return (
        run(
            "plan", "onnx:squeezenet", "--target", "edge-npu", "--out", out, "--seed", "5", "--json"
        ),
        out,
    )


@pytest.mark.slow
def test_plan_prints_exactly_one_json_object_with_what_is_promised(planned) -> None:
    result, out = planned
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    for key in (
        "status",
        "makespan",
        "lower_bound",
        "throughput",
        "traffic_bytes",
        "seconds",
        "cpu_seconds",
        "seed",
        "files",
    ):
        assert key in summary
    assert summary["seed"] == 5
    assert summary["memories"]["scratchpad"].keys() >= {"peak", "capacity"}
    assert 0 < summary["lower_bound"] <= summary["makespan"]
    assert summary["violations"] == []
    assert sorted(Path(file).name for file in summary["files"]) == [
        "plan.json",
        "report.html",
        "trace.pftrace",
    ]
    assert sorted(path.name for path in out.iterdir()) == [
        "plan.json",
        "report.html",
        "trace.pftrace",
    ]


@pytest.mark.slow
def test_a_written_plan_verifies_and_a_broken_one_does_not(planned, tmp_path: Path) -> None:
    _, out = planned
    good = run("verify", out / "plan.json")
    assert good.returncode == 0
    assert "the plan holds" in good.stdout
    data = json.loads((out / "plan.json").read_text())
    data["jobs"] = data["jobs"][1:]
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(data))
    bad = run("verify", broken)
    assert bad.returncode == 1
    assert "does not hold" in bad.stderr
    as_json = run("verify", broken, "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["valid"] is False


@pytest.mark.slow
def test_plan_says_what_it_was_made_for_and_what_came_of_deadlines(tmp_path: Path) -> None:
    command = (
        "plan",
        "onnx:squeezenet",
        "--target",
        "edge-npu",
        "--precision",
        "int8",
        "--mini-batches",
        "2",
        "--effort",
        "test",
        "--out",
        tmp_path,
    )
    met = run(
        *command,
        "--objective",
        "energy",
        "--period",
        "squeezenet=1ms",
        "--deadline",
        "squeezenet=900 us",
        "--json",
    )
    assert met.returncode == 0, met.stderr
    summary = json.loads(met.stdout)
    assert summary["objective"]["name"] == "energy"
    assert (
        summary["objective"]["value"]
        == summary["energy"]["value"]
        >= summary["energy"]["lower_bound"]
        > 0
    )
    assert summary["energy"]["by"].keys() == {"dram", "scratchpad", "ws0", "ws1", "ws2", "lb"}
    assert (summary["missed"], summary["lateness"]) == (0, 0.0)
    assert [batch["release"] for batch in summary["mini_batches"]] == [0.0, 0.001]
    late = run(*command, "--deadline", "squeezenet=1us")
    assert late.returncode == 3, late.stderr
    assert "2 of 2 mini-batches miss their deadlines" in late.stderr
    assert "its deadline of 1.00 us is impossible" in " ".join(late.stdout.split())
    assert run("verify", tmp_path / "plan.json").returncode == 0
    page = (tmp_path / "report.html").read_text()
    assert "missed" in page
    assert "<h2>Energy</h2>" in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--deadline", "5ms"), ("--deadline '5ms'", "NAME=S")),
        (("--period", "squeezenet=soon"), ("'soon'", "time")),
        (("--deadline", "resnet=5ms"), ("'resnet'", "squeezenet")),
        (("--objective", "beauty"), ("'beauty'", "throughput, latency, energy, edp")),
        (("--network", "squeezenet"), ("latency",)),
    ],
)
def test_goals_that_make_no_sense_are_refused(
    options: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    refused(
        run("plan", "onnx:squeezenet", "--target", "edge-npu", "--out", tmp_path / "p", *options),
        *words,
    )
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
def test_the_summary_says_what_was_planned_and_that_figures_are_estimates(tmp_path: Path) -> None:
    result = run("plan", "onnx:squeezenet", "--target", "m3e-s1", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    for words in ("squeezenet", "Makespan", "dram", "estimates", "report.html"):
        assert words in result.stdout
    assert result.stderr == ""


def test_targets_lists_one_line_each_and_prints_the_toml_of_one() -> None:
    lines = run("targets").stdout.splitlines()
    assert {line.split()[0] for line in lines} >= {
        "edge-npu",
        "m3e-s1",
        "m3e-s6",
        "optane-server",
        "gpu-pcie",
    }
    assert '[[cores]]\nname = "ws"' in run("targets", "edge-npu").stdout


@pytest.mark.slow
def test_inspect_shows_operators_macs_and_bytes() -> None:
    result = run("inspect", "onnx:resnet50", "--json", "--precision", "int8", "--batch", "2")
    report = json.loads(result.stdout)
    assert report["macs"] == pytest.approx(2 * 4.09e9, rel=0.01)
    assert report["weight_bytes"] == pytest.approx(25.6e6, rel=0.01)
    assert report["operators"]["Conv"]["count"] == 53
    assert report["not_understood"] == {}
    assert "Conv" in run("inspect", "onnx:resnet50").stdout


@pytest.mark.slow
def test_inspect_calls_free_only_those_operators_of_a_kind_that_are(tmp_path: Path) -> None:
    """A lookup in a table of weights costs something, and one in a shape, of the same kind, does
    not."""
    network = str(FIXTURES / "traced-bert-opset14.onnx.gz")
    options = ("--dim", "batch=2", "--dim", "steps=16")
    gathers = json.loads(run("inspect", network, "--json", *options).stdout)["operators"]["Gather"]
    assert gathers["classes"] == {"movement": 3, "shape": 11}
    assert gathers["count"] == 14
    assert gathers["bytes"] > 2 * 16 * 32 * 4
    rows = [
        line.split()
        for line in run("inspect", network, *options).stdout.splitlines()
        if line.startswith(("Gather ", "Mul "))
    ]
    assert sorted((row[0], row[1]) for row in rows) == [
        ("Gather", "movement"),
        ("Gather", "shape"),
        ("Mul", "elementwise"),
        ("Mul", "shape"),
    ]


@pytest.mark.parametrize("command", [["plan"], ["size"], ["verify"], ["targets"], ["inspect"]])
def test_every_command_has_an_example_in_its_help(command: list[str]) -> None:
    assert "Example:" in run(*command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "missing.onnx", "--target", "edge-npu"], ["missing.onnx"]),
        (["plan", "onnx:nothing", "--target", "edge-npu"], ["onnx:nothing", "resnet50"]),
        (["plan", "onnx:squeezenet", "--target", "no-such"], ["no-such", "edge-npu"]),
        (
            ["plan", "onnx:squeezenet", "--target", "edge-npu", "--set", "dram.speed=3"],
            ["dram.speed"],
        ),
        (
            ["plan", "onnx:squeezenet", "--target", "edge-npu", "--dim", "batch"],
            ["--dim", "NAME=N"],
        ),
        (
            ["plan", "onnx:squeezenet", "--target", "edge-npu", "--dim", "batch=0"],
            ["--dim", "at least 1"],
        ),
        (
            ["plan", "onnx:squeezenet", "--target", "edge-npu", "--precision", "int7"],
            ["int7", "int8"],
        ),
        (["plan", "onnx:squeezenet"], ["--target"]),
        (["plan", "onnx:squeezenet", "--target", "edge-npu", "--batch", "0"], ["--batch"]),
        (
            ["plan", "onnx:squeezenet", "--target", "edge-npu", "--time-limit", "5 parsecs"],
            ["parsecs"],
        ),
        (["plan", "onnx:squeezenet", "--target", "edge-npu", "--seed", str(2**64)], ["--seed"]),
        (
            ["plan", "onnx:squeezenet", "--target", "edge-npu", "--set", "dram.bandwidth=1 B/s"],
            ["hours"],
        ),
        (["no-such-command"], ["no-such-command"]),
        (
            ["plan", "onnx:vgg19", "--target", "edge-npu", "--set", "dram.capacity=1MiB"],
            ["dram", "take", "available", "in excess"],
        ),
        (
            ["plan", "onnx:vgg19", "--target", "gpu-pcie", "--set", "hbm.capacity=4KiB"],
            ["hbm", "required", "available", "in excess"],
        ),
        (["verify", "missing.json"], ["missing.json"]),
        (["targets", "no-such"], ["no-such"]),
        (["inspect", "README.md"], ["README.md"]),
    ],
)
@pytest.mark.slow
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("not a network")
    out = ["--out", str(tmp_path / "out")] if arguments[0] == "plan" else []
    refused(run(*arguments, *out, cwd=tmp_path), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_unwritable_out_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused(
        run("plan", "onnx:squeezenet", "--target", "edge-npu", "--out", tmp_path / "file"),
        "--out",
        "file",
    )
    refused(
        run(
            "plan", "onnx:squeezenet", "--target", "edge-npu", "--out", tmp_path / "file" / "below"
        ),
        "--out",
        "below",
    )
    assert (tmp_path / "file").read_text() == "in the way"


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; sys.argv = ['loadmaster', '--help']\nfrom loadmaster.cli.main import app\n"
    code += "try:\n    app()\nexcept SystemExit:\n    pass\n"
    code += (
        "print([m for m in ('numpy', 'onnx', 'pydantic', 'bokeh', 'highspy', 'perfetto') if m in"
        " sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.stderr.strip().splitlines()[-1] == "[]"


@pytest.mark.slow
def test_if_one_file_cannot_be_written_none_is(tmp_path: Path) -> None:
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    refused(
        run("plan", "onnx:squeezenet", "--target", "edge-npu", "--out", tmp_path / "out"),
        "report.html",
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_an_interrupt_while_reading_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    code = f"""import sys
from loadmaster.cli import main
from loadmaster.workloads.frontends import load
def interrupt(*arguments, **options): raise KeyboardInterrupt
load.load = interrupt
sys.argv = ["loadmaster", "plan", "x.onnx", "--target", "edge-npu", "--out", {out!r}]
main.main()"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 130
    assert result.stderr.strip() == "loadmaster: interrupted"
    assert not (tmp_path / "out").exists()


def test_an_interrupt_while_commands_are_loaded_says_so() -> None:
    code = """import sys
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "loadmaster.cli.commands.plan": raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from loadmaster.cli.start import main
main()"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (130, "loadmaster: interrupted\n")


def test_a_time_limit_counts_from_the_start_of_the_program() -> None:
    code = """import loadmaster.planning.planner as planner
original = planner.plan
def call(graphs, machine, **options):
    print("left", options["time_limit"] < 100)
    return original(graphs, machine, **options)
planner.plan = call
from loadmaster.cli.start import main
main()"""
    arguments = [
        "plan",
        "onnx:squeezenet",
        "--target",
        "edge-npu",
        "--effort",
        "test",
        "--cut",
        "none",
        "--time-limit",
        "100",
        "--json",
    ]
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("left True\n"), "reading networks is part of it"


def signalled(tmp_path: Path, sent: str, when: str) -> subprocess.CompletedProcess[str]:
    """Run `loadmaster plan` in a process that sends itself a signal when ``loadmaster.WHEN`` is
    called."""
    module, _, name = when.rpartition(".")
    code = f"""import os, signal, sys
import loadmaster.{module} as module
from loadmaster.cli import main
original = module.{name}
def call(*arguments, **options):
    os.kill(os.getpid(), signal.{sent})
    return original(*arguments, **options)
module.{name} = call
sys.argv = ["loadmaster", "plan", "onnx:squeezenet", "--target", "edge-npu", "--cut", "none", "--effort", "test"]
sys.argv += ["--out", {str(tmp_path / "out")!r}]
main.main()"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "when", ["planning.planner.lower", "planning.verify.plan.verify", "report.write.write_report"]
)
@pytest.mark.slow
def test_an_interrupt_once_networks_are_read_still_writes_a_plan(tmp_path: Path, when: str) -> None:
    result = signalled(tmp_path, "SIGINT", when)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "plan.json",
        "report.html",
        "trace.pftrace",
    ]
    assert lm.verify(lm.Plan.load(tmp_path / "out" / "plan.json")) == ()


def test_a_request_to_end_leaves_nothing_behind(tmp_path: Path) -> None:
    result = signalled(tmp_path, "SIGTERM", "planning.planner.network_bounds")
    assert result.returncode == 143
    assert not (tmp_path / "out").exists()


def test_version_and_short_help() -> None:
    import loadmaster

    assert run("--version").stdout == f"loadmaster {loadmaster.__version__}\n"
    assert run("-h").stdout == run("--help").stdout
    assert run("plan", "-h").stdout == run("plan", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plam"], "Did you mean 'plan'"),
        (["plan", "onnx:squeezenet", "--taget", "edge-npu"], "--target"),
        (
            ["plan", "onnx:squeezenet", "--target", "egde-npu"],
            "there is no bundled target 'egde-npu': did you mean edge-npu?",
        ),
        (
            ["map", "onnx:squeezenet", "--target", "edge-npu", "--strategy", "anealing"],
            "did you mean annealing?",
        ),
    ],
)
def test_misspellings_are_met_half_way(arguments: list[str], words: str, tmp_path: Path) -> None:
    refused(run(*arguments, cwd=tmp_path), words)


@pytest.mark.parametrize(
    "command",
    [
        (
            "plan",
            "onnx:squeezenet",
            "--target",
            "edge-npu",
            "--effort",
            "test",
            "--precision",
            "int8",
        )
    ],
)
@pytest.mark.slow
def test_a_narrow_terminal_cuts_no_figure(command: tuple[str, ...], tmp_path: Path) -> None:
    """Every figure and unit of a wide terminal is there in one of 40 columns."""

    def words(columns: str) -> list[str]:
        environment = os.environ | {"NO_COLOR": "1", "COLUMNS": columns}
        full = [sys.executable, "-m", "loadmaster", *command, "--out", str(tmp_path / "o")]
        done = subprocess.run(full, capture_output=True, text=True, env=environment, check=True)
        return [
            word for word in done.stdout.split("Planned")[0].split() if not word.startswith("wrote")
        ]

    wide, narrow = words("200"), words("40")
    assert sorted(wide) == sorted(narrow)
    assert any(
        word.endswith("OP/s") and "FLOP" not in word for word in wide
    )  # integers are no floating-point operations


@pytest.mark.slow
def test_a_plan_is_checked_against_its_network_and_machine(tmp_path: Path) -> None:
    ncf, wide = FIXTURES / "ncf.onnx.gz", FIXTURES / "wide-and-deep.onnx.gz"
    made = run(
        "plan",
        ncf,
        "--target",
        "edge-npu",
        "--batch",
        "4",
        "--effort",
        "test",
        "--out",
        tmp_path / "out",
    )
    assert made.returncode == 0, made.stderr
    check = ("verify", tmp_path / "out" / "plan.json", "--against")
    good = run(*check, ncf, "--batch", "4", "--target", "edge-npu")
    assert (good.returncode, "it is one of these networks on edge-npu" in good.stdout) == (
        0,
        True,
    ), good.stderr
    for more, word in (
        ((ncf, "--batch", "8"), "batch"),
        ((ncf, "--batch", "4", "--precision", "int8"), "precision"),
        (
            (ncf, "--batch", "4", "--target", "edge-npu", "--set", "dram.bandwidth=1 GB/s"),
            "bandwidth",
        ),
        ((wide, "--batch", "4"), "networks"),
        ((f"{ncf},{wide}", "--batch", "4"), "networks"),
    ):
        bad = run(*check, *more)
        assert bad.returncode == 1, more
        assert word in bad.stderr
    refused(run(*check[:2], "--target", "edge-npu"), "--against")
    refused(run(*check, ncf, "--set", "dram.bandwidth=1 GB/s"), "--target")
    refused(run(*check, tmp_path / "none.onnx"), "none.onnx")
