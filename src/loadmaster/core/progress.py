"""Progress callbacks, deadlines, deferred Ctrl-C, and relaxed garbage collection."""

from __future__ import annotations

import gc
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_MANY = 1_000_000
"""Threshold of the garbage collector within :func:`gc_relaxed`: few records are part of cycles."""


@contextmanager
def gc_relaxed() -> Iterator[None]:
    """Raise the garbage collector's threshold within the block, unless it is higher already or
    collection is off."""
    first, *others = gc.get_threshold()
    if not 0 < first < _MANY:
        yield
        return
    gc.set_threshold(_MANY, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)


@dataclass(frozen=True)
class Deadline:
    """A time after which no further search is begun.

    ``begin`` and ``end`` are seconds of :func:`time.monotonic`; no deadline has an infinite end.
    """

    begin: float = 0.0
    end: float = math.inf

    @staticmethod
    def within(seconds: float | None) -> Deadline:
        """Return the deadline ``seconds`` from now; no deadline for None."""
        now = time.monotonic()
        return Deadline(now, math.inf if seconds is None else now + float(seconds))

    @property
    def is_set(self) -> bool:
        """Whether there is a deadline."""
        return self.end < math.inf

    def left(self) -> float:
        """Seconds until the deadline, at least 0; infinite without one."""
        return max(0.0, self.end - time.monotonic())

    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return not self.left()

    def spent(self) -> float:
        """Fraction of the time that has passed, from 0 to 1; 0 without a deadline."""
        whole = self.end - self.begin
        return min(1.0, (time.monotonic() - self.begin) / whole) if whole > 0 else 1.0

    def before(self, seconds: float) -> Deadline:
        """Return an earlier deadline that leaves ``seconds`` for later work, at most three quarters
        of the time left."""
        return Deadline(self.begin, self.end - min(seconds, self.left() * 3 / 4))

    def part(self, fraction: float) -> Deadline:
        """Return the deadline of work that may take a fraction of the time left."""
        return Deadline.within(self.left() * fraction)


NO_DEADLINE = Deadline()
"""No deadline: budgets count work, so the answer is the same on every machine."""


class Interrupts:
    """A handler of Ctrl-C that records the first interrupt in ``requested``.

    The first interrupt is only raised inside :meth:`breakable`; a second one is raised at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self._breakable = False

    def __call__(self, *_: object) -> None:
        """Record an interrupt; the arguments of a signal handler are ignored."""
        again, self.requested = self.requested, True
        if again or self._breakable:
            raise KeyboardInterrupt

    @contextmanager
    def breakable(self, breaks: bool = True) -> Iterator[None]:
        """Raise KeyboardInterrupt at once within the block, also for an earlier Ctrl-C; if not
        ``breaks``, record it, also in a block that is breakable."""
        before, self._breakable = self._breakable, breaks
        try:
            if breaks and self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._breakable = before


@contextmanager
def deferred_interrupts() -> Iterator[Interrupts]:
    """Record Ctrl-C within the block instead of raising it; nested blocks share one record.

    Takes effect only in the main thread with Python's default handler; elsewhere KeyboardInterrupt
    may be raised at any time.
    """
    interrupts = Interrupts()
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGINT)
        if isinstance(before, Interrupts):
            with before.breakable(False):
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


@contextmanager
def ends_at_interrupt(deadline: Deadline) -> Iterator[Deadline]:
    """Let Ctrl-C end a search in native code, which then returns the best so far; yield its
    deadline, which has passed if Ctrl-C came before."""
    with deferred_interrupts() as interrupts, interrupts.breakable(not interrupts.requested):
        yield Deadline.within(0.0) if interrupts.requested else deadline


class Stopwatch:
    """Wall-clock and processor time since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Seconds of both."""
        wall, cpu = self._began
        return time.monotonic() - wall, time.process_time() - cpu


Progress = Callable[[str, float], object]
"""A callback that is told the name of a stage and its completed share, from 0 to 1; the result is
ignored."""


def no_progress(stage: str, share: float, /) -> None:
    """A progress callback that does nothing."""


def part_of(progress: Progress, stage: str, number: int, parts: int) -> Progress:
    """Return a callback for part ``number`` (from 0) of ``parts`` equal parts of a stage; it
    reports the stage's name and overall share."""
    return lambda _, share: progress(stage, (number + share) / parts)
