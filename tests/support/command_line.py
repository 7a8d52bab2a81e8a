"""Runs the program as a user does, and checks how it refuses."""

import os
import subprocess
import sys
from pathlib import Path


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "100"}
    command = [sys.executable, "-m", "loadmaster", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, nothing on standard output, one line on standard error that holds all words."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr
