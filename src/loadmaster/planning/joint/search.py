"""The joint search over the order of jobs and the policy that fills the fast memory along it.

::

    minimise    score(order(s), policy(s))            lateness, then the objective
    over        states s = (blocks, begin, pace, lag, shift; policy)
    subject to  order(s) respects dependencies; at every position the tensors that are kept,
                fetched or in use fit into the share of the fast memory that may be filled

The evaluation (`src/native/joint`) chooses stays, fetches and cores along the order by the policy,
and simulates. The search climbs: a change of the state is kept if it is no worse. All listed
changes are tried once, in random order; then changes are drawn at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.progress import Progress, no_progress
from loadmaster.planning.decisions import Score
from loadmaster.planning.joint.problem import Chain, Evaluation, JointOptions, JointProblem
from loadmaster.planning.joint.state import (
    LAGS,
    SHARES,
    Block,
    State,
    best_blocks,
    given_states,
    order_by,
    policy_values,
    starts,
)

T = TypeVar("T")


Change = Callable[[State], State]


class SearchMove:
    """A move of the search: a way to change a state."""

    useful = True
    """Whether the move can change a state of this problem."""
    changes: tuple[Change, ...] = ()
    """Changes that are tried once before any are drawn."""

    def propose(self, state: State, kept: Ints, generator: np.random.Generator) -> State:
        """Return a randomly changed state; ``kept`` are the tensors with stays in the fast memory
        in the best state."""
        return self.changes[generator.integers(len(self.changes))](state)


class ChangePolicy(SearchMove):
    """Change one number of the policy."""

    def __init__(self, problem: JointProblem) -> None:
        self.changes = tuple(
            partial(_with_number, name, value)
            for name, values in policy_values(problem).items()
            for value in values
        )


class ChangePrice(SearchMove):
    """Change the price of the cores of one kind: a higher price leaves these cores to the jobs that
    gain most by them."""

    def __init__(self, problem: JointProblem) -> None:
        compute = problem.table.compute
        # Cores with equal times for all jobs are of one kind.
        self._kinds = np.unique(compute, axis=1, return_inverse=True)[1].reshape(-1)
        self.useful = bool(self._kinds.any())

    def propose(self, state: State, kept: Ints, generator: np.random.Generator) -> State:
        """Multiply the price of a random kind of cores."""
        prices = np.array(state.policy.core_prices or (1.0,) * len(self._kinds))
        kind = int(generator.integers(self._kinds.max() + 1))
        prices[self._kinds == kind] *= float(np.exp(generator.normal() * 0.3))
        return replace(state, policy=replace(state.policy, core_prices=tuple(prices.tolist())))


class ChangeBlocks(SearchMove):
    """Split a block, join two, move an end, or change the number of mini-batches in a group; or
    change the lag. Blocks make no difference for a network with one mini-batch."""

    def __init__(self, problem: JointProblem) -> None:
        self._chains = problem.chains
        self._able = [n for n, chain in enumerate(self._chains) if chain.mini_batches > 1]
        self.useful = bool(self._able)
        self.changes = tuple(
            partial(_with_blocks, n, blocks)
            for n in self._able
            for blocks in _blocks_to_try(self._chains[n], problem.capacity)
        )

    def propose(self, state: State, kept: Ints, generator: np.random.Generator) -> State:
        """Change the blocks of a random network or, for a single network, the lag."""
        if len(self._chains) == 1 and generator.random() < 0.3:
            return replace(state, lag=float(generator.choice((0.0, *LAGS))))
        n = self._able[generator.integers(len(self._able))]
        changed = _other_blocks(state.blocks[n], self._chains[n].mini_batches, generator)
        return _with_blocks(n, changed, state)


class ChangeNetwork(SearchMove):
    """Let a network begin sooner or later, or progress faster or slower."""

    def __init__(self, problem: JointProblem) -> None:
        networks = len(problem.chains)
        self.useful = networks > 1
        steps = [(later, 1.0) for later in (-0.5, -0.2, 0.2, 0.5)]
        steps += [(0.0, slower) for slower in (0.5, 0.75, 1.33, 2.0)]
        self.changes = tuple(
            partial(_with_network, n, *step) for n in range(networks) for step in steps
        )


class ShiftJobs(SearchMove):
    """Shift a range of steps of one mini-batch to earlier or later positions."""

    def __init__(self, problem: JointProblem) -> None:
        self._jobs, self._chains = len(problem.width), problem.chains

    def propose(self, state: State, kept: Ints, generator: np.random.Generator) -> State:
        """Add one random number to the keys of a random range of steps."""
        shift = np.zeros(self._jobs) if state.shift is None else state.shift.copy()
        chain = self._chains[generator.integers(len(self._chains))]
        far = float(generator.choice([0.003, 0.01, 0.03, 0.1]))
        batch = int(generator.integers(chain.mini_batches))
        first, last = sorted(int(s) for s in generator.integers(0, chain.steps + 1, 2))
        if generator.random() < 0.5:
            last = min(chain.steps, first + int(generator.integers(1, 4)))
        shift[chain.jobs[batch, first : last + 1]] += generator.normal() * far
        return replace(state, shift=shift)


class StreamTensors(SearchMove):
    """Toggle whether one tensor, or a few neighbouring ones, are only streamed; tensors are drawn
    in proportion to the square root of their bytes.

    A fetched tensor crosses the fast link twice, a streamed one never. The policy's rules treat all
    tensors alike; this move makes exceptions.
    """

    def __init__(self, problem: JointProblem) -> None:
        self.useful = problem.target.main.in_place and bool(problem.workload.tensors)
        sizes = [tensor.bytes for tensor in problem.workload.tensors]
        self._weight = np.sqrt(np.array(sizes, dtype=np.float64))

    def propose(self, state: State, kept: Ints, generator: np.random.Generator) -> State:
        """Toggle tensors that have a stay or were toggled before; others would change nothing."""
        streamed = state.policy.streamed_tensors
        changes = np.zeros(len(self._weight), dtype=np.bool_)
        changes[kept] = changes[[*streamed]] = True
        able = np.flatnonzero(changes)
        if not len(able):
            return state
        until = np.cumsum(self._weight[able])
        first = int(np.searchsorted(until, generator.random() * until[-1], side="right"))
        changed = able[first : first + int(generator.choice((1, 1, 2, 4)))]
        streamed = tuple(sorted({*streamed} ^ {*changed.tolist()}))
        return replace(state, policy=replace(state.policy, streamed_tensors=streamed))


def moves(problem: JointProblem) -> list[SearchMove]:
    """The moves that can change a state of this problem."""
    kinds = ChangePolicy, ChangePrice, ChangeBlocks, ChangeNetwork, ShiftJobs, StreamTensors
    every: list[SearchMove] = [kind(problem) for kind in kinds]
    return [move for move in every if move.useful]


def listed(options: Sequence[SearchMove]) -> list[Change]:
    """The changes that are tried once, before any are drawn."""
    return [change for move in options for change in move.changes]


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    """Return a tuple with one value replaced."""
    return (*values[:at], value, *values[at + 1 :])


def _with_number(name: str, value: Any, state: State) -> State:
    """Return a state in which one number of the policy has a value."""
    return replace(state, policy=replace(state.policy, **{name: value}))


def _with_blocks(n: int, blocks: tuple[Block, ...], state: State) -> State:
    """Return a state in which a network has other blocks."""
    return replace(state, blocks=_with(state.blocks, n, blocks))


def _with_network(n: int, later: float, slower: float, state: State) -> State:
    """Return a state in which a network begins later and progresses more slowly."""
    return replace(
        state,
        begin=_with(state.begin, n, state.begin[n] + later),
        pace=_with(state.pace, n, state.pace[n] * slower),
    )


def _blocks_to_try(chain: Chain, capacity: int) -> Iterable[tuple[Block, ...]]:
    """Return the best blocks for shares of the fast memory, and one block for every size of
    groups."""
    groups = [n for n in range(1, chain.mini_batches + 1) if chain.mini_batches % n == 0]
    best = [best_blocks(chain, int(capacity * share)) for share in SHARES]
    return dict.fromkeys((*best, *((Block(chain.steps, group),) for group in groups)))


def _other_blocks(
    blocks: tuple[Block, ...], mini_batches: int, generator: np.random.Generator
) -> tuple[Block, ...]:
    """Return random other blocks: one split, two joined, a boundary moved, or another group of
    mini-batches."""
    at = int(generator.integers(len(blocks)))
    first, block = blocks[at - 1].end if at else 0, blocks[at]
    kind = int(generator.integers(4))
    if kind == 0 and block.end - first > 1:
        middle = int(generator.integers(first + 1, block.end))
        return (*blocks[:at], replace(block, end=middle), block, *blocks[at + 1 :])
    if kind == 1 and at + 1 < len(blocks):
        return (*blocks[:at], replace(blocks[at + 1], group=block.group), *blocks[at + 2 :])
    if kind == 2 and at + 1 < len(blocks) and blocks[at + 1].end - first > 2:
        middle = int(generator.integers(first + 1, blocks[at + 1].end))
        return (*blocks[:at], replace(block, end=middle), *blocks[at + 1 :])
    group = int(generator.integers(1, mini_batches + 1))
    return (*blocks[:at], replace(block, group=group), *blocks[at + 1 :])


@dataclass(frozen=True)
class Found:
    """The best evaluation, its order and policy, and the number of evaluations so far."""

    order: Ints
    policy: JointOptions
    evaluation: Evaluation
    evaluations: int


class JointSearch:
    """Evaluates the starts, then tries every listed change once, then makes random moves.

    ``samples`` is how many evaluations are expected, for ``progress``. ``late`` or Ctrl-C ends the
    search earlier, but ``late`` only after the ``given`` orders: these take little time, and
    without them a plan would often use little of the fast memory.
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
        self._problem, self._late, self._progress = problem, late, progress
        self._samples = max(1, samples)
        self._given = list(given_states(problem, given))
        self._best: tuple[Evaluation, Ints, State] | None = None
        self._base: tuple[Score, State, Ints] | None = None
        self._done = 0
        self._filled: tuple[float, ...] = (1.0,) * len(problem.memories)
        self._unhurried = len(self._given)
        self._steps = self._explore(np.random.default_rng(seed))

    def run(self, samples: int) -> Found:
        """Evaluate ``samples`` more states; return the best since the last change of a memory's
        share."""
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
        """Continue with a share of a memory's current room, because the best state found no
        addresses there."""
        self._filled = _with(self._filled, memory, self._filled[memory] * share)
        found, base = self._best, self._base
        self._best = self._base = None
        if found is not None:
            self._offer(found[2], is_given=True)
        if base is not None:
            self._offer(base[1])

    def _explore(self, generator: np.random.Generator) -> Iterator[None]:
        """Evaluate one state per step, without end unless every state deadlocks."""
        for state in self._given:
            self._offer(state, is_given=True)
            yield
        given = self._best
        for state in starts(self._problem):
            self._offer(replace(state, policy=given[2].policy) if given else state)
            yield
        options = moves(self._problem)
        changes = listed(options)
        generator.shuffle(changes)
        for change in changes:
            if self._base is not None:
                self._offer(change(self._base[1]))
                yield
        while self._base is not None and self._best is not None:
            move = options[generator.integers(len(options))]
            kept = self._best[0].run.stay_tensor
            self._offer(move.propose(self._base[1], kept, generator))
            yield

    def _offer(self, state: State, *, is_given: bool = False) -> None:
        """Evaluate a state, and keep it as the base of further changes if it is no worse. A given
        state is no base: changes of blocks do not suit its order."""
        base = self._base
        order = base[2] if base and state.orders_as(base[1]) else order_by(state, self._problem)
        policy = replace(state.policy, filled_fraction=self._filled)
        score, made = self._problem.score(order, policy)
        self._done += 1
        if score is None:
            return
        if self._best is None or score < self._best[0].final_score:
            self._best = made or self._problem.evaluate(order, policy), order, state
        if not is_given and (self._base is None or score <= self._base[0]):
            self._base = score, state, order
        self._progress("planning jointly", min(1.0, self._done / self._samples))
