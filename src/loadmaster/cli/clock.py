"""The time since the start of the program, including loading modules and reading networks."""

from __future__ import annotations

import time

_begun: float | None = None
"""Start of the program by :func:`time.monotonic`; None if another program calls commands."""


def begin() -> None:
    """Record the start of the program."""
    global _begun
    _begun = time.monotonic()


def spent() -> float:
    """Return the seconds since the start of the program; 0 in another program."""
    return 0.0 if _begun is None else time.monotonic() - _begun
