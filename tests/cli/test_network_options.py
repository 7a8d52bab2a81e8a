"""Options of networks are the same on every command that reads one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from loadmaster.cli.main import app
from loadmaster.core.errors import ModelError

SHARED = {"batch", "dim", "precision"}


def commands(group: object, before: str = "") -> dict[str, set[str]]:
    """Names of all commands with those of their parameters."""
    found: dict[str, set[str]] = {}
    for name, command in getattr(group, "commands", {}).items():
        spot = f"{before}{name}"
        found |= {spot: {parameter.name for parameter in command.params}}
        found |= commands(command, f"{spot} ")
    return found


def test_commands_with_one_of_them_have_all() -> None:
    known = commands(typer.main.get_command(app))
    reading = {name: SHARED - own for name, own in known.items() if SHARED & own}
    assert {"place", "profile", "run", "plan", "inspect", "verify"} <= reading.keys()
    assert not {name: lacking for name, lacking in reading.items() if lacking}


@pytest.fixture
def open_dims(tmp_path: Path) -> Path:
    """A product with two symbolic dimensions."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", 32])
    weight = numpy_helper.from_array(np.zeros((64, 32), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], [weight])
    path = tmp_path / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_place_takes_sizes_and_a_precision(open_dims: Path) -> None:
    words = ["place", str(open_dims), "--target", "optane-server", "--json", "--batch", "2"]
    refused = CliRunner().invoke(app, words)
    assert "--dim length=N" in str(refused.exception)
    peaks = []
    for more in ([], ["--precision", "int8"]):
        done = CliRunner().invoke(app, [*words, "--dim", "length=100", *more])
        assert done.exit_code == 0, done.output
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
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("torch", exc_type=ImportError)
    (tmp_path / "sized_networks.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "times.sqlite"))
    return "torch:sized_networks:net"


def test_sizes_are_arguments_of_torch_factories(factory: str) -> None:
    words = ["inspect", factory, "--json", "--batch", "3", "--dim"]
    done = CliRunner().invoke(app, [*words, "width=16"])
    assert json.loads(done.stdout)["macs"] == 3 * 16 * 4
    refused = CliRunner().invoke(app, [*words, "length=16"])
    assert "the factory takes no argument length: add one, or leave out --dim" in str(
        refused.exception
    )


@pytest.mark.parametrize(
    "words",
    [["profile", "NET"], ["run", "NET", "--fast", "1GiB"], ["plan", "NET", "--target", "edge-npu"]],
    ids=lambda words: words[0],
)
def test_precisions_of_torch_factories_are_theirs(words: list[str], factory: str) -> None:
    given = [factory if word == "NET" else word for word in words]
    done = CliRunner().invoke(app, [*given, "--precision", "fp16"])
    assert isinstance(done.exception, ModelError)
    assert "cast what the factory makes" in str(done.exception)


def test_profile_takes_sizes(factory: str) -> None:
    done = CliRunner().invoke(app, ["profile", factory, "--dim", "width=16", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["measured"] > 0
