"""What the README shows of the demo is what it prints today."""

import re
import shlex
from pathlib import Path

import pytest
from tests.support.command_line import run

ROOT = Path(__file__).parents[1]


@pytest.mark.nightly
def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    command = re.search(r"\$\(BIN\)/loadmaster (plan .*)", (ROOT / "Makefile").read_text())
    assert command
    words = shlex.split(command[1])
    words[words.index("--out") + 1] = str(tmp_path / "demo")
    printed = run(*words, cwd=ROOT).stdout
    said = {" ".join(line.split()) for line in printed.splitlines()}
    shown = re.search(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown
    assert {" ".join(line.split()) for line in shown[1].splitlines()} - said == set()
