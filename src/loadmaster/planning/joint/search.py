"""The joint search: an order of jobs, and the policy by which the fast memory is filled along it.

::

    minimise    score(order(s), policy(s))            lateness, then the objective
    over        states s = (blocks, begin, pace, lag, shift; policy)
    subject to  order(s) respects dependencies; at every position what is kept, fetched and in use
                fits into the share of the fast memory that may be filled

The evaluation (`src/native/joint`) chooses stays, fetches and cores along the order by the policy,
and simulates. The walk accepts a state that is slightly worse than the one it is at (threshold
accepting, Dueck and Scheuer 1990), and draws a move the more often the more often it has helped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.progress import Progress, no_progress
from loadmaster.planning.decisions import Score
from loadmaster.planning.joint.moves import moves
from loadmaster.planning.joint.problem import Evaluation, JointOptions, JointProblem, fingerprint
from loadmaster.planning.joint.state import State, chains, given_states, order_by, starts

_TOLERANCE = 0.002
"""Relative distance by which an accepted state may be worse than the one before, in the mean and at
the start of the search."""

_WANDERING = 0.5
"""Share of the search in which it may go on from what is worse; then it goes on from the best."""


@dataclass(frozen=True)
class Found:
    """The best evaluation, its order and policy, and how many evaluations were made up to now."""

    order: Ints
    policy: JointOptions
    evaluation: Evaluation
    evaluations: int


class JointSearch:
    """Starts, then one pass after another over the values of the policy as long as one helps, then
    a walk of random moves.

    Only ``late``, asked after each evaluation once the ``given`` orders are tried, or Ctrl-C ends
    it before the ``samples`` evaluations that it expects to make, once there is an answer: those
    few take less time than what led to them, and without them a plan would often use little fast
    memory.
    """

    def __init__(
        self,
        problem: JointProblem,
        given: Sequence[Ints],
        *,
        samples: int,
        seed: int,
        late: Callable[[], bool] | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self.interrupted = False
        self._problem, self._samples, self._late, self._progress = problem, samples, late, progress
        self._chains = chains(problem.workload)
        self._given = list(given_states(problem, self._chains, given))
        self._best: tuple[Evaluation, Ints, State] | None = None
        self._at: State | None = None
        self._score: Score | None = None
        self._done = 0
        self._filled: tuple[float, ...] = (1.0,) * len(problem.target.memories)
        self._unhurried = len(self._given)
        self._steps = self._explore(np.random.default_rng(seed))

    def run(self, samples: int) -> Found:
        """Evaluate so many states more; the best of all since a memory's share was last changed."""
        try:
            for _ in itertools.islice(self._steps, 0 if self.interrupted else samples):
                if self._late is not None and self._done >= self._unhurried and self._late():
                    self.interrupted = True
                    break
        except KeyboardInterrupt:
            self.interrupted = True
        if self._best is None:
            self._offer(self._given[0])
        assert self._best is not None
        evaluation, order, state = self._best
        return Found(order, state.policy, evaluation, self._done)

    def shrink_capacity(self, memory: int, share: float) -> None:
        """Go on with only a share of a memory's room used until now: what was found could not be
        given addresses there."""
        self._filled = tuple(
            filled * (share if number == memory else 1.0)
            for number, filled in enumerate(self._filled)
        )
        found, self._best = self._best, None
        at, self._at, self._score = self._at, None, None
        for state in (found[2] if found else None, at):
            if state is not None:
                self._offer(state, 2.0)

    def _explore(self, generator: np.random.Generator) -> Iterator[None]:
        """Evaluate for ever, or until there is nothing to go on from: one state a step."""
        for state in self._given:
            self._offer(state, 0.0)
            yield
        for state in starts(self._problem, self._chains):
            self._offer(state)
            yield
        options = moves(self._problem, self._chains)
        least: Score | None = None
        while self._at is not None and least != self._score:
            least = self._score
            for move in options:
                for change in move.changes():
                    self._offer(change(self._at))
                    yield
        gains, tries = np.ones(len(options)), np.ones(len(options))
        while self._at is not None and self._best is not None:
            left = 1.0 - self._done / self._samples / _WANDERING
            if left <= 0.0:
                left, self._at, self._score = 0.0, self._best[2], self._best[0].final_score
            chance = (gains / tries) ** 2
            chosen = int(generator.choice(len(options), p=chance / chance.sum()))
            before = self._best[0].final_score
            proposed = options[chosen].propose(self._at, self._best[0].run.stay_tensor, generator)
            self._offer(proposed, 1.0 + _TOLERANCE * left * generator.exponential())
            tries[chosen] += 1
            gains[chosen] += self._best[0].final_score < before
            yield

    def _offer(self, state: State, tolerance: float = 1.0) -> None:
        """Evaluate a state and go on from it if it is hardly worse than the last; with a tolerance
        of 0 do not."""
        order = order_by(state, self._problem, self._chains)
        policy = replace(state.policy, filled_fraction=self._filled)
        score, made = self._problem.score(order, fingerprint(order), policy)
        self._done += 1
        if score is None:
            return
        if self._best is None or score < self._best[0].final_score:
            self._best = made or self._problem.evaluate(order, policy), order, state
        if tolerance and (self._score is None or _hardly_worse(score, self._score, tolerance)):
            self._at, self._score = state, score
        self._progress("planning jointly", min(1.0, self._done / self._samples))


def _hardly_worse(score: Score, least: Score, tolerance: float) -> bool:
    """Whether a score is no worse than ``tolerance`` times another in the first of overflow,
    lateness and objective in which they differ."""
    if tolerance == 1.0:
        return score <= least
    first = next((n for n in range(2) if score[n] != least[n]), 2)
    return score[first] <= least[first] * tolerance
