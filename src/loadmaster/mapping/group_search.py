"""The search state that strategies work on: group, budget, and the best mapping so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT, Floats
from loadmaster.core.progress import NO_DEADLINE, Deadline, Progress, no_progress
from loadmaster.mapping.bounds.group_bounds import GroupBound, tightened
from loadmaster.mapping.group import Cores, Group, Priorities, Queues, core_and_position

_SLICE = 3_000_000
"""Jobs evaluated between checks of the clock, about a twentieth of a second."""
_SHORT_SLICE = 200_000
"""The same with a time limit."""
_RATE = 50_000_000
"""Approximate number of jobs evaluated per second."""

Genome = tuple[Cores, Priorities]


@dataclass
class MappingSearch:
    """A search for a mapping of a group.

    Strategies read the first fields, and score genomes or offer queues until :attr:`done`.
    ``samples`` is the largest number of evaluated mappings, None for no limit.
    """

    group: Group
    bound: GroupBound
    seed: int = 0
    threads: int = 1
    samples: int | None = None
    deadline: Deadline = NO_DEADLINE
    warm_start: Genome | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    progress: Progress = no_progress

    queues: Queues | None = None
    score: float = np.inf
    taken: int = 0
    interrupted: bool = False
    tight: bool = False
    history: list[tuple[int, float]] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        """Whether the best mapping meets the bound."""
        return self.score <= self.bound.score * (1 + 1e-12)

    @property
    def done(self) -> bool:
        """Whether to stop: the bound is met, or no samples or time are left."""
        if self.deadline.passed():
            self.interrupted = True
        return self.interrupted or self.proven or self.left == 0

    @property
    def left(self) -> int:
        """Samples left."""
        return WHOLE_LIMIT if self.samples is None else max(0, self.samples - self.taken)

    @property
    def budget_spent(self) -> float:
        """Fraction of the budget that is spent, samples or seconds, from 0 to 1."""
        return min(
            1.0, max(self.deadline.spent(), self.taken / self.samples if self.samples else 0.0)
        )

    @property
    def slice(self) -> int:
        """Number of samples between checks of :attr:`done`."""
        jobs = _SHORT_SLICE if self.deadline.is_set else _SLICE
        return max(1, min(self.left, jobs // self.group.jobs))

    @property
    def expected(self) -> int:
        """Approximate number of samples left in the budget."""
        if not self.deadline.is_set:
            return self.left
        return min(self.left, int(self.deadline.left() * _RATE / self.group.jobs))

    def scores(self, core: Cores, priority: Priorities) -> Floats:
        """Score genomes, a row each, and keep the best; rows beyond the budget score infinity."""
        result = np.full(len(core), np.inf)
        at = 0
        while at < len(core) and not (at and self.done):
            end = min(len(core), at + self.slice)
            rows = slice(at, end)
            result[rows] = self.group.native.scores(core[rows], priority[rows], self.threads)
            least = float(result[rows].min())
            if least < self.score:
                self.queues = self.best(core[rows], priority[rows], result[rows])
            self.spent(end - at, least)
            at = end
        return result

    def best(self, core: Cores, priority: Priorities, scores: Floats) -> Queues:
        """Queues of the genome with the least score."""
        row = [int(scores.argmin())]
        return self.group.decode(core[row], priority[row])

    def tighten(self, deadline: Deadline) -> None:
        """Tighten the bound, once."""
        if self.queues is None or self.proven or self.tight:
            return
        self.tight = True
        self.bound = tightened(self.group, self.bound, self.queues, deadline)

    def offer(self, queues: Queues) -> float:
        """Score one row of queues and keep it if it is the best so far."""
        score = self.value(queues)
        if score < self.score:
            self.queues = queues
        self.spent(1, score)
        return score

    def value(self, queues: Queues) -> float:
        """Score of one row of queues."""
        core, _ = core_and_position(queues, self.group.cores)
        return self.group.score(float(self.group.makespans(queues)[0]), self.group.energy_of(core))

    def spent(self, samples: int, score: float) -> None:
        """Count samples, the best of which scored ``score``; the caller keeps the queues."""
        self.taken += samples
        if score < self.score:
            self.score = score
            self.history.append((self.taken, score))
        self.progress("mapping", self.budget_spent)


@dataclass(frozen=True)
class MappingStrategy:
    """A strategy: its search function, default number of samples, and settings."""

    run: Callable[[MappingSearch], None]
    samples: Callable[[Group], int] = lambda group: 10_000
    settings: tuple[str, ...] = ()
