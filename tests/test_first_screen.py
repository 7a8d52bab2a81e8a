"""What the README shows of the demo is what it prints today, and pictures are those of today's
pages."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from tests.support.command_line import ran, run

ROOT = Path(__file__).parents[1]


@pytest.mark.nightly
def test_the_readme_shows_what_the_demo_prints(tmp_path):
    command = re.search(r"\$\(BIN\)/loadmaster (plan .*)", (ROOT / "Makefile").read_text())
    assert command
    words = shlex.split(command[1])
    words[words.index("--out") + 1] = str(tmp_path / "demo")
    printed = run(*words, cwd=ROOT).stdout
    said = {" ".join(line.split()) for line in printed.splitlines()}
    shown = re.search(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown
    assert {" ".join(line.split()) for line in shown[1].splitlines()} - said == set()


@pytest.mark.nightly
def test_pictures_are_those_of_todays_pages(tmp_path, monkeypatch):
    """Their figures are kept beside them by the scripts that take them."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    gallery = runpy.run_path(str(ROOT / "docs" / "gallery.py"))
    from picture import FIGURES, figures_of

    kept = json.loads(FIGURES.read_text())
    for picture in gallery["PICTURES"]:
        out = tmp_path / picture.name
        ran(*picture.command.split(), "--quiet", "--out", str(out), cwd=ROOT)
        assert figures_of(out / picture.page) == kept[f"gallery/{picture.name}"], (
            "run: python docs/gallery.py"
        )
    shown = (ROOT / "README.md").read_text()
    for name in ("Makespan", "Traffic dram"):
        value = dict(kept["plan"])[name]
        assert re.search(rf"{name} +{value} ", shown), "run: make demo; python docs/picture.py"
