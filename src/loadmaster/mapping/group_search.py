"""What every strategy works on: the group, its limits, and the best mapping so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmaster.mapping.bounds.group_bounds import GroupBound, tightened
from loadmaster.mapping.group import Cores, Floats, Group, Priorities, Queues, core_and_position

_SLICE = 3_000_000
"""Jobs evaluated between looks at the clock, about a twentieth of a second."""
_SHORT_SLICE = 200_000
"""The same where time is what limits the search."""
_RATE = 50_000_000
"""Jobs evaluated in a second, about."""
_PROOF = 0.2
"""Share of the time left that goes into a better bound."""

Genome = tuple[Cores, Priorities]


@dataclass
class Search:
    """One attempt at a group.

    Strategies read the first fields, and score genomes or offer queues until :attr:`done`. ``samples`` is how many mappings may be
    evaluated, None for no limit; ``deadline`` is of :func:`time.perf_counter`.
    """

    group: Group
    bound: GroupBound
    seed: int = 0
    threads: int = 1
    samples: int | None = None
    deadline: float | None = None
    warm_start: Genome | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    progress: Callable[[float], None] | None = None

    queues: Queues | None = None
    score: float = np.inf
    taken: int = 0
    interrupted: bool = False
    tight: bool = False
    history: list[tuple[int, float]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    @property
    def proven(self) -> bool:
        """Whether the bound says that there is nothing left to gain."""
        return self.score <= self.bound.score * (1 + 1e-12)

    @property
    def done(self) -> bool:
        """Whether to stop: nothing left to gain, no samples left, or no time."""
        if self.deadline is not None and time.perf_counter() >= self.deadline:
            self.interrupted = True
        return self.interrupted or self.proven or self.left == 0

    @property
    def left(self) -> int:
        """Samples left."""
        return 2**62 if self.samples is None else max(0, self.samples - self.taken)

    @property
    def share(self) -> float:
        """How much of the budget is spent, between 0 and 1."""
        shares = [0.0]
        if self.samples:
            shares.append(self.taken / self.samples)
        if self.deadline is not None and self.deadline > self.started:
            shares.append((time.perf_counter() - self.started) / (self.deadline - self.started))
        return min(1.0, max(shares))

    @property
    def slice(self) -> int:
        """Samples after which to look whether to stop."""
        jobs = _SLICE if self.deadline is None else _SHORT_SLICE
        return max(1, min(self.left, jobs // max(1, self.group.jobs)))

    @property
    def expected(self) -> int:
        """Samples that the rest of the budget has room for, about."""
        if self.deadline is None:
            return self.left
        return min(self.left, int(max(0.0, self.deadline - time.perf_counter()) * _RATE / max(1, self.group.jobs)))

    def scores(self, core: Cores, priority: Priorities) -> Floats:
        """Score genomes, a row each, and keep the best; rows beyond the budget score infinity."""
        result = np.full(len(core), np.inf)
        at = 0
        while at < len(core) and not (at and self.done):
            end = min(len(core), at + self.slice)
            rows = slice(at, end)
            result[rows] = self.group.native.scores(core[rows], priority[rows], self.threads)
            best = at + int(result[rows].argmin())
            if result[best] < self.score:
                self.queues = self.group.decode(core[best : best + 1], priority[best : best + 1])
            self.spent(end - at, float(result[best]))
            at = end
        return result

    def tighten(self) -> None:
        """Look for a better bound, once."""
        if self.queues is None or self.proven or self.tight:
            return
        self.tight = True
        until = None
        if self.deadline is not None:
            now = time.perf_counter()
            until = now + _PROOF * (self.deadline - now)
        self.bound = tightened(self.group, self.bound, self.queues, until)

    def offer(self, queues: Queues) -> float:
        """Score one row of queues and keep it if it is the best so far."""
        score = self.value(queues)
        if score < self.score:
            self.queues = queues
        self.spent(1, score)
        return score

    def value(self, queues: Queues) -> float:
        """What one row of queues scores."""
        core, _ = core_and_position(queues, self.group.cores)
        return self.group.score(float(self.group.makespans(queues)[0]), self.group.energy_of(core))

    def spent(self, samples: int, score: float) -> None:
        """Count samples, the best of which scored ``score``; whoever calls it keeps their queues."""
        self.taken += samples
        if score < self.score:
            self.score = score
            self.history.append((self.taken, score))
        if self.progress is not None:
            self.progress(self.share)


@dataclass(frozen=True)
class Strategy:
    """A way to look for mappings: how it goes about it, how many samples it takes if nobody says, and what can be set."""

    run: Callable[[Search], None]
    samples: Callable[[Group], int] = lambda group: 10_000
    settings: tuple[str, ...] = ()
