"""Names can do nothing to the terminal, whatever a command prints of them."""

import re
from pathlib import Path

import pytest
from tests.support.command_line import ran
from tests.support.onnx_builder import info, model, node, save

from loadmaster.cli import output
from loadmaster.cli.output import print_tables, say
from loadmaster.report.view import Line

EVIL = "\x1b[31m\x1b]0;pwned\x07\x9b2J\u202egnp\x7f[bold]"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def network(folder, kind, shapes=True):
    """A network whose names are all hostile."""
    names = [f"{EVIL}{at}" for at in range(3)]
    nodes = [
        node("Relu", names[:1], names[1], EVIL),
        node(kind, names[1:2], names[2], f"{EVIL}2", "" if kind == "Relu" else "acme"),
    ]
    proto = model(nodes, {names[0]: (1, 8)}, names[2:], value_info=[info(names[1], (1, 8))])
    proto.graph.output[0].CopyFrom(info(names[2], (1, 8) if shapes else None))
    proto.graph.name = EVIL
    return save(folder, proto)


COMMANDS = [
    "inspect",
    "plan --target edge-npu",
    "place --target optane-server",
    "size --target edge-npu --vary scratchpad=64KiB:1MiB --makespan 1ms",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Relu", EVIL], ids=["known", "not understood"])
@pytest.mark.parametrize("command", COMMANDS)
def test_tables_show_hostile_names_as_text(command, kind, tmp_path):
    done = ran(command, network(tmp_path, kind), cwd=tmp_path)
    assert not CONTROL.search(done.stdout + done.stderr)
    if command == "inspect":
        assert "\N{REPLACEMENT CHARACTER}[31m" in done.stdout


def test_error_lines_show_hostile_names_as_text(tmp_path):
    path = network(tmp_path, EVIL, shapes=False)
    done = ran("inspect", path, code=2)
    assert "\N{REPLACEMENT CHARACTER}[31m" in done.stderr
    assert not CONTROL.search(done.stderr + done.stdout)


def test_styles_of_our_own_are_kept(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    print_tables([Line(f"ours {EVIL}", "strong")])
    out = capsys.readouterr().out
    assert out.startswith("\x1b[1m")
    assert "\x1b[31m" not in out
    assert "\x07" not in out
    say(f"two\nlines {EVIL}")
    assert capsys.readouterr().out.startswith("two\nlines \N{REPLACEMENT CHARACTER}[31m")


def test_nothing_else_prints():
    folder = Path(output.__file__).parent
    printing_too = [
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if path.name != "output.py"
        and re.search(r"typer\.echo|click\.echo|(?<![\w.])print\(|console\.print", path.read_text())
    ]
    assert printing_too == []
