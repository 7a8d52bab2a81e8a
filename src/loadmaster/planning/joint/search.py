"""Search over loop orders, and over what the fast memory is filled with along them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.progress import Progress, no_progress
from loadmaster.planning.decisions import Score
from loadmaster.planning.joint.neighbours import (
    ENERGY_ONLY,
    FETCH_LEADS,
    LAGS,
    SLIGHT_WAIT,
    Design,
    Neighbours,
)
from loadmaster.planning.joint.orders import Block, Chain, best_blocks, chains, order_of
from loadmaster.planning.joint.problem import Evaluation, JointOptions, JointProblem, fingerprint
from loadmaster.planning.joint.single_streams import SingleStreams
from loadmaster.planning.joint.timed_orders import timed_keys

_TOLERANCE = 0.002
"""Relative distance by which a neighbour may be worse than the current design, in the mean and at
the start of the search."""

_STREAMS_FROM = 0.5
"""Share of the search after which it changes nothing but which single tensors are streamed, where
jobs can stream."""


@dataclass(frozen=True)
class Found:
    """The best evaluation, its order and choices, and after how many evaluations it was found to be
    that."""

    order: Ints
    choices: JointOptions
    evaluation: Evaluation
    evaluations: int


class JointSearch:
    """Find an order of jobs, and stays along it, that reach the problem's goal as well as can be.

    First the structures: the ``given`` orders; mini-batches of a network step by step, each a
    little behind the one before; and blocks by dynamic programming for several shares of the fast
    memory, networks side by side or one after the other, each with several ways to fill the memory.
    Of the best, one thing at a time is changed as long as that helps. Then a search that changes
    blocks, paces, lags, shifts and choices at random and keeps what is hardly worse, less and less
    of which it tolerates over the ``samples`` evaluations that it expects to make. In the last half
    of these it changes which single tensors are streamed, from the best on. Only ``late``, asked
    after each evaluation once the given orders are tried, or Ctrl-C ends it earlier, once there is
    an answer: those few take less time than what led to them, and without them a plan would often
    use little fast memory.
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
        self._cores = problem.table.compute.shape[1]
        self._neighbours = Neighbours(problem, self._chains)
        self._best: tuple[Evaluation, Ints, JointOptions] | None = None
        self._design: Design | None = None
        self._least: Score | None = None
        self._known: dict[tuple[bytes, JointOptions], Score | None] = {}
        self._done = 0
        self._fill = self._main_fill = 1.0
        self._first = (given[0], JointOptions())
        self._unhurried = len(given) * len(list(self._first_choices()))
        self._steps = self._explore(given, np.random.default_rng(seed))

    def run(self, samples: int) -> Found:
        """Evaluate so many orders more; the best of all since a memory's share was last changed."""
        try:
            for _ in itertools.islice(self._steps, 0 if self.interrupted else samples):
                if self._late is not None and self._done >= self._unhurried and self._late():
                    self.interrupted = True
                    break
        except KeyboardInterrupt:
            self.interrupted = True
        if self._best is None:
            self._try(*self._first)
        assert self._best is not None
        evaluation, order, choices = self._best
        return Found(order, choices, evaluation, self._done)

    def fill_less(self, fast: float = 1.0, main: float = 1.0) -> None:
        """Go on with only these shares of the room used until now: what was found could not be
        given addresses."""
        self._fill *= fast
        self._main_fill *= main
        self._known.clear()
        found, self._best = self._best, None
        if found is not None:
            self._try(*found[1:])
        if self._design is not None:
            self._least = self._try(self._order(self._design), self._design.choices)

    def _explore(
        self, given: Sequence[Ints], generator: np.random.Generator
    ) -> Iterator[Score | None]:
        """Evaluate for ever, or until there is nothing to go on from: one order a step."""
        for order, choices in itertools.product(given, self._first_choices()):
            yield self._try(order, choices)
        for design in self._structures():
            yield self._offer(design)
        least: Score | None = None
        while self._design is not None and least != self._least:
            least = self._least
            for change in self._neighbours.changes(lambda: self._at):
                yield self._offer(change)
        workload = self._problem.workload
        streams = (
            SingleStreams(workload)
            if self._problem.target.main.in_place and workload.tensors
            else None
        )
        while self._design is not None:
            left = max(0.0, 1.0 - self._done / self._samples)
            if streams is not None and self._best is not None and 0.0 < left <= 1.0 - _STREAMS_FROM:
                evaluation, order, choices = self._best
                yield self._try(
                    order, streams.changed(choices, evaluation.run.stay_tensor, generator)
                )
            else:
                yield self._offer(
                    self._neighbours.of(self._at, generator),
                    1.0 + _TOLERANCE * left * generator.exponential(),
                )

    def _try(self, order: Ints, choices: JointOptions) -> Score | None:
        """Evaluate what is not known yet, and remember if it is the best so far; the score, or None
        if it never ends."""
        key = (fingerprint(order), choices)
        if key in self._known:
            self._done += 1
            return self._known[key]
        options = replace(choices, filled_fraction=self._fill, main_filled_fraction=self._main_fill)
        score, made = self._problem.score(order, key[0], options)
        self._done += 1
        self._known[key] = score
        if score is not None and (self._best is None or score < self._best[0].judged):
            self._best = (made or self._problem.evaluate(order, options), order, choices)
        if self._best is not None:
            self._progress("planning jointly", min(1.0, self._done / self._samples))
        return score

    def _offer(self, design: Design, tolerance: float = 1.0) -> Score | None:
        """Evaluate a design and go on from it if it is not much worse than the last."""
        score = self._try(self._order(design), design.choices)
        if score is not None and (
            self._least is None or _hardly_worse(score, self._least, tolerance)
        ):
            self._design, self._least = design, score
        return score

    def _first_choices(self) -> Iterator[JointOptions]:
        for slack in (0, self._cores, 4 * self._cores):
            yield JointOptions(release_delay_positions=slack)
        if self._cores > 1:
            yield JointOptions(release_delay_positions=self._cores, core_wait_ratio=SLIGHT_WAIT)
        for lead in FETCH_LEADS[:-1] if self._problem.fetches_may_wait else ():
            yield JointOptions(
                release_delay_positions=self._cores, core_wait_ratio=SLIGHT_WAIT, fetch_lead=lead
            )

    def _design_choices(self) -> Iterator[JointOptions]:
        """Ways to fill the memory, and to choose cores, that suit the goal."""
        slacks, goal = (0, self._cores, 4 * self._cores), self._problem.goal
        if goal.objective == "energy":
            for slack, energy_weight in itertools.product(slacks[:2], (0.0, 1.0, ENERGY_ONLY)):
                yield JointOptions(
                    release_delay_positions=slack,
                    streamed_share=math.inf,
                    fast_link_price=self._problem.energy_price,
                    energy_weight=energy_weight,
                )
            return
        if self._problem.near_limits:
            balanced = JointOptions(release_delay_positions=self._cores, streamed_share=1.0)
            yield balanced
            yield replace(balanced, fast_load_limit=1.0)
            yield replace(balanced, fast_load_limit=1.4, link_load_limit=2.0, prefetch_fraction=0.5)
        for slack, streamed in itertools.product(slacks, (0.0, math.inf)):
            yield JointOptions(release_delay_positions=slack, streamed_share=streamed)
            if goal.pressing:
                yield JointOptions(
                    release_delay_positions=slack,
                    streamed_share=streamed,
                    urgent_networks_first=True,
                )

    def _structures(self) -> Iterator[Design]:
        networks = len(self._chains)
        fast = self._problem.target.fast
        assert fast is not None
        if self._problem.goal.is_timed:
            yield from self._timed()
        elif (
            networks == 1
            and self._chains[0].mini_batches > 1
            and not self._problem.goal.needs_energy
        ):
            yield from self._in_step(self._chains[0])
        turn = self._turn()
        beside, in_turn = (
            ((0.0,) * networks, "side by side"),
            (tuple(float(turn.index(n)) for n in range(networks)), "in turn"),
        )
        seen: set[tuple[tuple[tuple[Block, ...], ...], tuple[float, ...]]] = set()
        for (begin, how), share in itertools.product(
            (beside, in_turn)[: min(networks, 2)], (0.8, 0.5, 0.3)
        ):
            room = int(fast.capacity * share) // (networks if how == "side by side" else 1)
            blocks = tuple(best_blocks(chain, room) for chain in self._chains)
            if (blocks, begin) in seen:
                continue
            seen.add((blocks, begin))
            for choices in self._design_choices():
                yield Design(blocks, begin, (1.0,) * networks, choices)

    def _in_step(self, chain: Chain) -> Iterator[Design]:
        """All mini-batches of the only network step by step, each a little behind the one before:
        links and arithmetic matter in turn."""
        block, cores = Block(chain.steps, chain.mini_batches), self._cores
        streamed, limit = (1.0, 1.0) if self._problem.near_limits else (math.inf, math.inf)
        ways = (
            JointOptions(release_delay_positions=cores, core_wait_ratio=SLIGHT_WAIT),
            JointOptions(
                release_delay_positions=4 * cores,
                core_wait_ratio=SLIGHT_WAIT,
                streamed_share=streamed,
                fast_load_limit=limit,
            ),
            JointOptions(
                release_delay_positions=4 * cores, streamed_share=streamed, link_load_limit=1.5
            ),
        )
        for choices, lag in itertools.product(ways, LAGS[1:-1]):
            yield Design(((block,),), (0.0,), (1.0,), choices, lag=lag)

    def _turn(self) -> list[int]:
        """Networks by how much they are waited for: the one whose latency counts, then by
        deadline."""
        goal, names = self._problem.goal, [info.name for info in self._problem.workload.networks]
        due = {name: deadline for name, _, deadline in goal.timings() if deadline is not None}
        return sorted(
            range(len(names)),
            key=lambda n: (
                names[n] != goal.latency_network,
                names[n] not in due,
                due.get(names[n], 0),
            ),
        )

    def _timed(self) -> Iterator[Design]:
        """Designs that follow the times at which mini-batches come and are due."""
        networks, goal = len(self._chains), self._problem.goal
        fast = self._problem.target.fast
        assert fast is not None
        periodic = {name for name, period, _ in goal.timings() if period}
        for share in (0.8, 0.3):
            blocks = tuple(
                (Block(chain.steps, 1),)
                if info.name in periodic
                else best_blocks(chain, int(fast.capacity * share) // networks)
                for chain, info in zip(self._chains, self._problem.workload.networks, strict=True)
            )
            plain = Design(blocks, (0.0,) * networks, (1.0,) * networks, JointOptions())
            base = self._keys(plain)
            for keys in timed_keys(goal, *self._work_before(blocks, periodic)):
                for choices in self._design_choices():
                    yield replace(plain, choices=choices, shift=keys - base)

    def _work_before(
        self, blocks: Sequence[tuple[Block, ...]], periodic: set[str]
    ) -> tuple[Floats, Floats]:
        """Seconds before each job, and in all, of the work that comes with it: its mini-batch if
        those come apart, else its network."""
        width = self._problem.width
        done, own = np.zeros(len(width)), np.zeros(len(width))
        for chain, mine, info in zip(
            self._chains, blocks, self._problem.workload.networks, strict=True
        ):
            order = order_of(chain, mine)
            parts = np.split(order, chain.mini_batches) if info.name in periodic else [order]
            for part in parts:
                done[part] = np.cumsum(width[part]) - width[part]
                own[part] = width[part].sum()
        return done, own

    def _order(self, design: Design) -> Ints:
        keys = self._keys(design)
        if design.shift is not None:
            keys = self._problem.after_sources(keys + design.shift)
        return np.asarray(np.argsort(keys, kind="stable"), dtype=np.int64)

    def _keys(self, design: Design) -> Floats:
        """Where the blocks of each network put its jobs, shifts left out."""
        width = self._problem.width
        keys = np.zeros(len(width))
        for chain, blocks, begin, pace in zip(
            self._chains, design.blocks, design.begin, design.pace, strict=True
        ):
            order = order_of(chain, blocks)
            elapsed = np.cumsum(width[order])
            keys[order] = begin + pace * (elapsed - width[order] / 2) / elapsed[-1]
            keys[chain.jobs] += pace * design.lag * np.arange(chain.mini_batches)[:, None]
        return keys

    @property
    def _at(self) -> Design:
        assert self._design is not None
        return self._design


def _hardly_worse(score: Score, least: Score, tolerance: float) -> bool:
    """Whether a score is no worse than ``tolerance`` times another: in lateness, and if that is no
    smaller, in the objective."""
    if tolerance == 1.0:
        return score <= least
    judged = 0 if score[0] != least[0] else 1
    return score[judged] <= least[judged] * tolerance
