"""Entry point of the ``loadmaster`` program, which handles Ctrl-C while modules are still being
loaded."""

from __future__ import annotations

import sys
from typing import NoReturn

from loadmaster.cli import clock


def main() -> NoReturn:
    """Load the commands, and run the command line."""
    clock.begin()
    try:
        from loadmaster.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("loadmaster: interrupted\n")
        sys.exit(130)
    run()
