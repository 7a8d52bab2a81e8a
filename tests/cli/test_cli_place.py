"""`loadmaster place`: one JSON object with what is promised, files, and mistakes in one line before the work."""

import json
from pathlib import Path

import pytest
from tests.support.command_line import refused, run
from tests.support.hand_sequence import step

from loadmaster.placement.sequence_json import write_sequence

PROMISED = [
    "status",
    "time",
    "lower_bound",
    "gap",
    "all_fast_time",
    "all_slow_time",
    "peak_fast",
    "limit",
    "moved_bytes",
    "moves",
    "seconds",
    "cpu_seconds",
    "tensors",
    "files",
]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write_sequence(step(), tmp_path / "step.json.gz")


@pytest.mark.slow
def test_place_prints_one_json_object_and_writes_the_same(written: Path) -> None:
    result = run(
        "place",
        written.name,
        "--target",
        "optane-server",
        "--fast",
        "50%",
        "--explain",
        "w",
        "--curve",
        "--out",
        "placed",
        "--json",
        cwd=written.parent,
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer.keys() >= set(PROMISED)
    assert answer["lower_bound"] <= answer["time"]
    assert answer["peak_fast"] <= answer["limit"] == step().peak_bytes // 2
    assert [tensor["name"] for tensor in answer["tensors"]] == ["x", "w", "a", "b", "da", "y"]
    assert [point["limit"] for point in answer["curve"]][-1] == step().peak_bytes
    assert answer["explained"].keys() == {"w"}
    kept = json.loads((written.parent / "placed" / "placement.json").read_text())
    assert kept == {key: value for key, value in answer.items() if key != "files"}
    assert {Path(file).name for file in answer["files"]} == {"placement.json", "report.html"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fast", "101%"], ["101%", "100%"]),
        (["--fast", "20", "--max-slowdown", "1.1"], ["--max-slowdown", "--fast"]),
        (["--fast", "20", "--explain", "nothing"], ["'nothing'", "no such tensor"]),
        (["--out", "/dev/null/placed", "--fast", "none"], ["--out", "cannot be written"]),
    ],
)
def test_mistakes_are_named_and_leave_nothing_behind(written: Path, options: list[str], words: list[str]) -> None:
    refused(run("place", written.name, "--target", "optane-server", *options, cwd=written.parent), *words)
    assert list(written.parent.iterdir()) == [written]
