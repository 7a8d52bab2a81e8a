"""How work says how far it is, what ends it early (a deadline, or Ctrl-C), and how often
Python's garbage collector looks meanwhile."""

from __future__ import annotations

import gc
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

_MANY = 1_000_000
"""Records more than are freed, between two looks: few of them are ever part of a cycle."""


@contextmanager
def gc_relaxed() -> Iterator[None]:
    """Look for cycles less often, unless they are looked for less often still; afterwards what was
    set before holds again."""
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
    """A moment after which no further search is begun.

    ``begin`` and ``end`` are seconds of :func:`time.monotonic`; an ``end`` of None means that there
    is no deadline, and budgets count work.
    """

    begin: float = 0.0
    end: float | None = None

    @staticmethod
    def within(seconds: float | None) -> Deadline:
        """The deadline that comes so many seconds from now; none for None."""
        now = time.monotonic()
        return Deadline(now, None if seconds is None else now + seconds)

    @property
    def is_set(self) -> bool:
        """Whether there is a deadline at all."""
        return self.end is not None

    def left(self) -> float:
        """Seconds until the deadline, at least 0; infinite where there is none."""
        return math.inf if self.end is None else max(0.0, self.end - time.monotonic())

    def passed(self) -> bool:
        """Whether the deadline has come."""
        return self.end is not None and time.monotonic() >= self.end

    def spent(self) -> float:
        """Fraction of the time given that is over, from 0 to 1; 0 where there is no deadline."""
        if self.end is None:
            return 0.0
        return (
            1.0
            if self.end <= self.begin
            else min(1.0, (time.monotonic() - self.begin) / (self.end - self.begin))
        )

    def before(self, seconds: float) -> Deadline:
        """The deadline of work after which something is to be done that takes so many seconds, of
        the time left at most three quarters."""
        return (
            self
            if self.end is None
            else Deadline(self.begin, self.end - min(seconds, self.left() * 3 / 4))
        )

    def part(self, fraction: float) -> Deadline:
        """The deadline, from now on, of work that may take this fraction of the time left."""
        return Deadline.within(self.left() * fraction if self.is_set else None)


NO_DEADLINE = Deadline()
"""For work whose budget counts evaluations, so that the same input and seed give the same answer on
any machine."""


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


class Progress(Protocol):
    """A function that is told, now and then, what is being done and how much of it is done."""

    def __call__(self, stage: str, share: float, /) -> object:
        """Take a stage, in words, and the share of it that is done, from 0 to 1. What it returns is
        ignored."""


def no_progress(stage: str, share: float, /) -> None:
    """Stands for a listener where nobody listens."""


def part_of(progress: Progress, stage: str, number: int, parts: int) -> Progress:
    """Report one of several equal parts of a stage, counted from 0, under the stage's name,
    whatever the part is called itself."""
    return lambda _, share: progress(stage, (number + share) / parts)
