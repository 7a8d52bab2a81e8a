"""When the program began: who waits for a command waits for its modules and its networks to be
read, too."""

from __future__ import annotations

import time

_begun: float | None = None
"""By :func:`time.monotonic`; None where commands are called from another program."""


def begin() -> None:
    """Say that the program begins now."""
    global _begun
    _begun = time.monotonic()


def spent() -> float:
    """Seconds since the program began; 0 in another program."""
    return 0.0 if _begun is None else time.monotonic() - _begun
