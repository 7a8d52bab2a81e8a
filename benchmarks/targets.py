"""Machines of other tools' examples, as target files that are written where they are used."""

from __future__ import annotations

import tempfile
from pathlib import Path

import loadmaster as lm
from loadmaster.targets.hardware import Target


def target_of(text: str) -> Target:
    """The machine that the text of a target file describes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "target.toml"
        path.write_text(text)
        return lm.target(path)
