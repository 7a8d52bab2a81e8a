"""Options of networks are the same on every command that reads one."""

import json

import pytest
import typer
from tests.support.command_line import printed, ran, refused, run
from tests.support.onnx_builder import model, save

from loadmaster.cli.main import app

SHARED = {"batch", "dim", "precision"}


def commands(group, before=""):
    """Names of all commands with those of their parameters."""
    found = {}
    for name, command in getattr(group, "commands", {}).items():
        spot = f"{before}{name}"
        found |= {spot: {parameter.name for parameter in command.params}}
        found |= commands(command, f"{spot} ")
    return found


def test_commands_with_one_of_them_have_all():
    known = commands(typer.main.get_command(app))
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
    said = "the factory takes no argument length: add one, or leave out --dim"
    refused(run(words, "length=16"), said)


@pytest.mark.parametrize("command", ["profile", "run --fast 1GiB", "plan --target edge-npu"])
def test_precisions_of_torch_factories_are_theirs(command, factory):
    refused(run(command, factory, "--precision fp16"), "cast what the factory makes")


def test_profile_takes_sizes(factory):
    assert printed("profile", factory, "--dim width=16")["measured"] > 0
