"""When work has to end, on the one clock that searches read: the monotonic one."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


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
