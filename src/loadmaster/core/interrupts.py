"""Ctrl-C during work whose result must not be lost: it is noted, and raised only where nothing is
lost by it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupts:
    """What has come of Ctrl-C since the work began; called by the interpreter when it comes.

    The first is noted in ``requested``, and raised only inside :meth:`breakable`; a second one is
    raised wherever it comes.
    """

    def __init__(self) -> None:
        self.requested = False
        self._breakable = 0

    def __call__(self, *_: object) -> None:
        """Take note of a Ctrl-C; takes what the interpreter says of a signal."""
        again, self.requested = self.requested, True
        if again or self._breakable:
            raise KeyboardInterrupt

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """Within, Ctrl-C raises KeyboardInterrupt at once, also if it came before."""
        self._breakable += 1
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._breakable -= 1


@contextmanager
def deferred_interrupts() -> Iterator[Interrupts]:
    """Note Ctrl-C instead of raising it at once; within another such block, go on with its notes.

    Only the main thread of a program that handles Ctrl-C as Python does is changed; elsewhere
    KeyboardInterrupt may come at any time.
    """
    interrupts = Interrupts()
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGINT)
        if isinstance(before, Interrupts):
            yield before
            return
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupts)
            try:
                yield interrupts
            finally:
                signal.signal(signal.SIGINT, before)
            return
    yield interrupts
