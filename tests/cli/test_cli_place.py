"""`loadmaster place`: one JSON object with what is promised, files, and mistakes in one line before
the work."""

import json
import signal
from pathlib import Path

import pytest
from tests.support.command_line import names, printed, ran, refused, run
from tests.support.hand_sequence import step
from tests.support.needs import FIXTURES
from tests.support.tables import cases

from loadmaster.placement.answer import MemoryPlan
from loadmaster.placement.sequence_json import write_sequence

pytestmark = pytest.mark.slow


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A file in the folder where commands run."""
    monkeypatch.chdir(tmp_path)
    return write_sequence(step(), tmp_path / "step.json.gz")


def test_place_prints_one_json_object_and_writes_the_same(written):
    answer = printed("place", written.name, "--fast 50% --explain w --curve --out placed")
    assert answer["lower_bound"] <= answer["makespan"]
    assert answer["peak"] <= answer["capacity"] == step().peak_bytes // 2
    assert [tensor["name"] for tensor in answer["tensors"]] == ["x", "w", "a", "b", "da", "y"]
    assert [point["capacity"] for point in answer["curve"]][-1] == step().peak_bytes
    assert answer["explained"].keys() == {"w"}
    kept = json.loads((written.parent / "placed" / "placement.json").read_text())
    assert kept == {key: value for key, value in answer.items() if key != "files"}
    assert {Path(file).name for file in answer["files"]} == {"placement.json", "report.html"}


def test_an_interrupt_after_the_search_keeps_its_answer(written, monkeypatch):
    def interrupt(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return original(*arguments, **options)

    original = MemoryPlan.as_json
    monkeypatch.setattr(MemoryPlan, "as_json", interrupt)
    ran("place", written, "--fast 50% --no-report --out placed")
    assert names(written.parent / "placed") == ["placement.json"]


@pytest.mark.parametrize(
    "row",
    cases("""
        --fast 101% | 101% | 100%
        --fast 20 --max-slowdown 1.1 | --max-slowdown | --fast
        --fast 20 --explain nothing | 'nothing' | no such tensor
        --target optane-server | step.json.gz | costs of its own | --target and --set
        --set copy.to_fast=1GB/s | --set | --target
        --out /dev/null/placed --fast none | --out | cannot be written
    """),
)
def test_mistakes_are_named_and_leave_nothing_behind(written, row):
    options, *words = row
    refused(run("place", written.name, options), *words)
    assert list(written.parent.iterdir()) == [written]


def test_a_step_from_a_file_is_costed_for_the_target(tmp_path):
    """The example of the documents: a file that any machine may cost, on a GPU, and on one with a
    slower bus."""
    file = FIXTURES / "resnet50-training.json.gz"

    def times(options, strategy="lru"):
        answer = printed("place", file, "--fast 60% --strategy", strategy, options)
        return answer["makespan"], answer["all_slow_time"]

    gpu = "--target gpu-pcie"
    on_server, on_gpu = times("--target optane-server", "all-slow"), times(gpu)
    assert on_server[1] is not None
    assert on_gpu[1] is None  # kernels of a GPU cannot run from the host's memory
    slower = times(f"{gpu} --set 'copy.to_fast=1 GB/s' --set 'copy.to_main=1 GB/s'")
    assert slower[0] > 1.5 * on_gpu[0]
    refused(run("place", file, "--fast 60%"), "resnet50-training.json.gz", "--target")
    refused(
        run("place", file, "--target edge-npu"), "resnet50-training.json.gz", "edge-npu has 4 cores"
    )
