"""What the README shows of the demo is what it prints today."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadmaster.cli.main import app

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command = re.search(r"\$\(BIN\)/loadmaster (plan .*)", (ROOT / "Makefile").read_text())
    assert command
    words = shlex.split(command[1])
    words[words.index("--out") + 1] = str(tmp_path / "demo")
    printed = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    said = {" ".join(line.split()) for line in printed.splitlines()}
    shown = re.search(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown
    assert {" ".join(line.split()) for line in shown[1].splitlines()} - said == set()
