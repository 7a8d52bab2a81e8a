"""Entry point of the ``loadmaster`` program, which handles Ctrl-C while modules are still being
loaded, and the time since its start, including loading modules and reading networks."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import NoReturn

_begun: float | None = None
"""Start of the program by :func:`time.monotonic`; None if another program calls commands."""


def main() -> NoReturn:
    """Load the commands, and run the command line."""
    global _begun
    _begun = time.monotonic()
    sys.unraisablehook = _interrupt_again
    try:
        from loadmaster.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("loadmaster: interrupted\n")
        sys.exit(130)
    run()


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that Python has dropped, because it came in a callback whose errors go
    nowhere."""
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(dropped)


def spent() -> float:
    """Return the seconds since the start of the program; 0 in another program."""
    return 0.0 if _begun is None else time.monotonic() - _begun
