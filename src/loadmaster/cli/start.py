"""Where the ``loadmaster`` program begins: Ctrl-C ends it properly from the start, while its modules are still being loaded."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

_begun: float | None = None
"""When the program began, by :func:`time.monotonic`; None where its commands are called from another."""


def spent() -> float:
    """Seconds since the program began."""
    return 0.0 if _begun is None else time.monotonic() - _begun


def main() -> NoReturn:
    """Load the commands, and run the command line."""
    global _begun
    _begun = time.monotonic()
    try:
        from loadmaster.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("loadmaster: interrupted\n")
        sys.exit(130)
    run()
