"""Search over loop orders, and over what the fast memory is filled with along them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.progress import Progress, no_progress
from loadmaster.planning.decisions import Score
from loadmaster.planning.goal import Goal
from loadmaster.planning.joint.frugal import Frugal
from loadmaster.planning.joint.orders import Block, Chain, best_blocks, chains, order_of
from loadmaster.planning.joint.problem import Evaluation, JointOptions, JointProblem
from loadmaster.planning.joint.single_streams import SingleStreams
from loadmaster.planning.joint.timed_orders import timed_keys

_TOLERANCE = 0.002
"""Relative distance by which a neighbour may be worse than the current design, in the mean and at the start of the search."""

OCCUPANCY_EXPONENTS = (1.0, 0.7, 0.3)
"""How much bytes and time of occupancy count against what a stay saves."""

STREAMED_SHARES = (0.0, 0.5, 0.8, 1.0, 1.25, math.inf)
"""Of the main link's time while jobs run, in which they may stream what is used once."""

FAST_LOAD_LIMITS = (0.7, 1.0, 1.4, math.inf)
"""Times that the fast link may be busy as long as the main one before nothing more stays."""

_STREAMS_FROM = 0.75
"""Share of the search after which it changes nothing but which single tensors are streamed, where jobs can stream."""

_SLIGHT_WAIT = 0.25
"""Seconds that a job waits for a core on which it is a second faster: only cores on which it is many times slower are refused."""

_ENERGY_ONLY = 1e6
"""Weight of energy at which each job goes to the core of least energy, whatever time it takes there."""

T = TypeVar("T")


@dataclass(frozen=True)
class Design:
    """What an order is made of: blocks for every network, when each network begins and how fast it goes, and what is varied beside.

    Network ``n`` is at ``begin[n] + pace[n] * p`` when the share ``p`` of its work is done; jobs of all networks are ordered by that,
    each shifted by its ``shift``, but for what they depend on.
    """

    blocks: tuple[tuple[Block, ...], ...]
    begin: tuple[float, ...]
    pace: tuple[float, ...]
    choices: JointOptions
    shift: Floats | None = None


@dataclass(frozen=True)
class Found:
    """The best evaluation, its order and choices, and after how many evaluations it was found to be that."""

    order: Ints
    choices: JointOptions
    evaluation: Evaluation
    evaluations: int


class JointSearch:
    """Find an order of jobs, and stays along it, that reach the problem's goal as well as can be.

    First the structures: blocks by dynamic programming for several shares of the fast memory, networks side by side or one after the other,
    and the ``given`` orders, each with several ways to fill the memory. Of the best, one thing at a time is changed as long as that helps.
    Then a search that changes blocks, paces, shifts and choices at random and keeps what is hardly worse, less and less of which it
    tolerates over the ``samples`` evaluations that it expects to make. In the last quarter of these it changes which single tensors are
    streamed, from the best on. Only ``late``, asked after each evaluation once the given orders are tried, or Ctrl-C ends it earlier,
    once there is an answer: those few take less time than what led to them, and without them a plan would often use little fast memory.
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
        # Cores on which every job takes as long are of a kind.
        self._kinds = np.unique(problem.table.compute, axis=1, return_inverse=True)[1].reshape(-1)
        self._best: tuple[Evaluation, Ints, JointOptions] | None = None
        self._frugal: Frugal[tuple[Ints, JointOptions, Design | None]] = Frugal()
        self._design: Design | None = None
        self._least: Score | None = None
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
        """Go on with only these shares of the room used until now: what was found could not be given addresses."""
        self._fill *= fast
        self._main_fill *= main
        self._frugal.clear()
        found, self._best = self._best, None
        if found is not None:
            self._try(*found[1:])
        if self._design is not None:
            self._least = self._try(self._order(self._design), self._design.choices)

    def economise(self, goal: Goal) -> None:
        """Go on from what costs least of all that is good enough, for a goal that says what is enough."""
        self._problem, self._best = self._problem.towards(goal), None
        if self._frugal:
            order, choices, design = self._frugal.least()
            self._try(order, choices)
            self._design = design or self._design
        if self._design is not None:
            self._least = self._try(self._order(self._design), self._design.choices)

    def _explore(self, given: Sequence[Ints], generator: np.random.Generator) -> Iterator[Score | None]:
        """Evaluate for ever, or until there is nothing to go on from: one order a step."""
        for order, choices in itertools.product(given, self._first_choices()):
            yield self._try(order, choices)
        for design in self._structures():
            yield self._offer(design)
        least: Score | None = None
        while self._design is not None and least != self._least:
            least = self._least
            for change in self._changes():
                yield self._offer(change)
        workload = self._problem.workload
        streams = SingleStreams(workload) if self._problem.target.main.in_place and workload.tensors else None
        while self._design is not None:
            left = max(0.0, 1.0 - self._done / self._samples)
            if streams is not None and self._best is not None and 0.0 < left <= 1.0 - _STREAMS_FROM:
                _, order, choices = self._best
                yield self._try(order, streams.changed(choices, generator))
            else:
                yield self._offer(self._neighbour(self._at, generator), 1.0 + _TOLERANCE * left * generator.exponential())

    def _try(self, order: Ints, choices: JointOptions, design: Design | None = None) -> Score | None:
        """Evaluate, and remember if it is the best so far; the score, or None if it never ends."""
        evaluation = self._problem.evaluate(order, replace(choices, filled_fraction=self._fill, main_filled_fraction=self._main_fill))
        self._done += 1
        score = evaluation.score
        if score is not None and (self._best is None or score < self._best[0].judged):
            self._best = (evaluation, order, choices)
        if score is not None and self._problem.goal.compares_energy:
            self._frugal.offer(score, lambda: self._problem.energy_of(evaluation.run) * evaluation.run.makespan, (order, choices, design))
        if self._best is not None:
            self._progress("planning jointly", min(1.0, self._done / self._samples))
        return score

    def _offer(self, design: Design, tolerance: float = 1.0) -> Score | None:
        """Evaluate a design and go on from it if it is not much worse than the last."""
        score = self._try(self._order(design), design.choices, design)
        if score is not None and (self._least is None or _hardly_worse(score, self._least, tolerance)):
            self._design, self._least = design, score
        return score

    @cached_property
    def _alternatives(self) -> list[list[tuple[Block, ...]]]:
        """Blocks that are tried for every network; a short search does not come to them."""
        return [self._blocks_of(chain) for chain in self._chains]

    def _blocks_of(self, chain: Chain) -> list[tuple[Block, ...]]:
        assert self._problem.target.fast is not None
        room = self._problem.target.fast.capacity
        options = {best_blocks(chain, int(room * share)): None for share in (0.8, 0.5, 0.3, 0.2, 0.1, 0.05)}
        options |= {(Block(chain.steps, group),): None for group in range(1, chain.mini_batches + 1) if chain.mini_batches % group == 0}
        return list(options)

    def _first_choices(self) -> Iterator[JointOptions]:
        for slack in (0, self._cores, 4 * self._cores):
            yield JointOptions(release_delay_positions=slack)
        if self._cores > 1:
            yield JointOptions(release_delay_positions=self._cores, core_wait_ratio=_SLIGHT_WAIT)

    def _design_choices(self) -> Iterator[JointOptions]:
        """Ways to fill the memory, and to choose cores, that suit the goal."""
        slacks, goal = (0, self._cores, 4 * self._cores), self._problem.goal
        if goal.objective == "energy":
            for slack, energy_weight in itertools.product(slacks[:2], (0.0, 1.0, _ENERGY_ONLY)):
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
                yield JointOptions(release_delay_positions=slack, streamed_share=streamed, urgent_networks_first=True)

    def _structures(self) -> Iterator[Design]:
        networks = len(self._chains)
        fast = self._problem.target.fast
        assert fast is not None
        if self._problem.goal.is_timed:
            yield from self._timed()
        turn = self._turn()
        beside, in_turn = ((0.0,) * networks, "side by side"), (tuple(float(turn.index(n)) for n in range(networks)), "in turn")
        seen: set[tuple[tuple[tuple[Block, ...], ...], tuple[float, ...]]] = set()
        for (begin, how), share in itertools.product((beside, in_turn)[: min(networks, 2)], (0.8, 0.5, 0.3)):
            room = int(fast.capacity * share) // (networks if how == "side by side" else 1)
            blocks = tuple(best_blocks(chain, room) for chain in self._chains)
            if (blocks, begin) in seen:
                continue
            seen.add((blocks, begin))
            for choices in self._design_choices():
                yield Design(blocks, begin, (1.0,) * networks, choices)

    def _turn(self) -> list[int]:
        """Networks by how much they are waited for: the one whose latency counts, then by deadline."""
        goal, names = self._problem.goal, [info.name for info in self._problem.workload.networks]
        due = {name: deadline for name, _, deadline in goal.timings() if deadline is not None}
        return sorted(range(len(names)), key=lambda n: (names[n] != goal.latency_network, names[n] not in due, due.get(names[n], 0)))

    def _timed(self) -> Iterator[Design]:
        """Designs that follow the times at which mini-batches come and are due."""
        networks, goal = len(self._chains), self._problem.goal
        fast = self._problem.target.fast
        assert fast is not None
        periodic = {name for name, period, _ in goal.timings() if period}
        for share in (0.8, 0.3):
            blocks = tuple(
                (Block(chain.steps, 1),) if info.name in periodic else best_blocks(chain, int(fast.capacity * share) // networks)
                for chain, info in zip(self._chains, self._problem.workload.networks, strict=True)
            )
            plain = Design(blocks, (0.0,) * networks, (1.0,) * networks, JointOptions())
            base = self._keys(plain)
            for keys in timed_keys(goal, *self._work_before(blocks, periodic)):
                for choices in self._design_choices():
                    yield replace(plain, choices=choices, shift=keys - base)

    def _work_before(self, blocks: Sequence[tuple[Block, ...]], periodic: set[str]) -> tuple[Floats, Floats]:
        """Seconds before each job, and in all, of the work that comes with it: its mini-batch if those come apart, else its network."""
        width = self._problem.width
        done, own = np.zeros(len(width)), np.zeros(len(width))
        for chain, mine, info in zip(self._chains, blocks, self._problem.workload.networks, strict=True):
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
        for chain, blocks, begin, pace in zip(self._chains, design.blocks, design.begin, design.pace, strict=True):
            order = order_of(chain, blocks)
            elapsed = np.cumsum(width[order])
            keys[order] = begin + pace * (elapsed - width[order] / 2) / elapsed[-1]
        return keys

    def _changes(self) -> Iterator[Design]:
        """The design that the search is at by then, with one thing changed: how the memory is filled; a network's blocks, begin or pace."""
        for name, values in self._grid():
            for value in values:
                if getattr(self._at.choices, name) != value:
                    yield replace(self._at, choices=replace(self._at.choices, **{name: value}))
        for n, options in enumerate(self._alternatives):
            for blocks in options:
                if self._at.blocks[n] != blocks:
                    yield replace(self._at, blocks=_with(self._at.blocks, n, blocks))
            for step in (-0.5, -0.2, 0.2, 0.5) if len(self._chains) > 1 else ():
                yield replace(self._at, begin=_with(self._at.begin, n, self._at.begin[n] + step))
            for factor in (0.5, 0.75, 1.33, 2.0) if len(self._chains) > 1 else ():
                yield replace(self._at, pace=_with(self._at.pace, n, self._at.pace[n] * factor))

    @property
    def _at(self) -> Design:
        assert self._design is not None
        return self._design

    def _grid(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        goal = self._problem.goal
        if goal.needs_energy:
            yield "energy_weight", (0.0, 1.0, _ENERGY_ONLY)
            yield "fast_link_price", (self._problem.energy_price,)
        if goal.pressing:
            yield "urgent_networks_first", (False, True)
        yield "fast_link_price", (0.0, 0.3, 1.0)
        if self._problem.near_limits:
            yield "fast_load_limit", FAST_LOAD_LIMITS
        yield "occupancy_exponent", OCCUPANCY_EXPONENTS
        yield "link_load_limit", (1.5, 2.0, 3.0, math.inf)
        yield "streamed_share", STREAMED_SHARES if self._problem.near_limits else (math.inf, 0.0)
        yield "release_delay_positions", (0, self._cores // 2, self._cores, 2 * self._cores, 4 * self._cores)
        yield "core_wait_ratio", (0.0, _SLIGHT_WAIT, 1.0, 4.0)
        yield "prefetch_fraction", (0.5, 0.75, 1.0)
        yield "retained_fraction", (0.8, 0.9, 1.0)
        if self._problem.target.main.in_place and self._problem.target.copy is not None:
            yield "fetched_back", (False, True)
        if self._kinds.any():
            yield (
                "core_prices",
                tuple(self._priced(self._at.choices, kind, factor) for kind in range(self._kinds.max() + 1) for factor in (0.8, 1.25)),
            )

    def _neighbour(self, design: Design, generator: np.random.Generator) -> Design:
        move = generator.random()
        if move < 0.25:
            return replace(design, choices=self._other_choices(design.choices, generator))
        n = int(generator.integers(len(self._chains)))
        if move < 0.5 and self._chains[n].mini_batches > 1:
            changed = _other_blocks(self._chains[n], design.blocks[n], generator)
            return replace(design, blocks=_with(design.blocks, n, changed))
        if move < 0.75 and len(self._chains) > 1:
            n = int(generator.integers(len(self._chains)))
            begin, pace = list(design.begin), list(design.pace)
            begin[n] += float(generator.normal() * 0.2)
            pace[n] *= float(np.exp(generator.normal() * 0.3))
            return replace(design, begin=tuple(begin), pace=tuple(pace))
        return replace(design, shift=self._other_shift(design, generator))

    def _other_choices(self, choices: JointOptions, generator: np.random.Generator) -> JointOptions:
        """Change one choice, now and then one that matters for this goal only."""
        goal = self._problem.goal
        if goal.needs_energy and generator.random() < 0.15:
            energy_weight = float(generator.choice([0.0, 0.3, 1.0, 3.0, _ENERGY_ONLY]))
            return replace(choices, energy_weight=energy_weight, fast_link_price=float(generator.choice([0.0, self._problem.energy_price])))
        if self._kinds.any() and generator.random() < 0.15:
            kind, factor = generator.integers(self._kinds.max() + 1), np.exp(generator.normal() * 0.3)
            return replace(choices, core_prices=self._priced(choices, int(kind), float(factor)))
        if goal.pressing and generator.random() < 0.2:
            return replace(choices, urgent_networks_first=not choices.urgent_networks_first)
        return _other_choices(choices, self._cores, self._problem.near_limits, generator)

    def _priced(self, choices: JointOptions, kind: int, factor: float) -> tuple[float, ...]:
        """Prices of cores of which those of a kind are changed by a factor."""
        prices = np.array(choices.core_prices or (1.0,) * self._cores)
        return tuple(np.where(self._kinds == kind, prices * factor, prices).tolist())

    def _other_shift(self, design: Design, generator: np.random.Generator) -> Floats:
        """Move a few jobs, or a mini-batch as a whole, forwards or back."""
        shift = np.zeros(len(self._problem.width)) if design.shift is None else design.shift.copy()
        chain = self._chains[int(generator.integers(len(self._chains)))]
        far = float(generator.choice([0.003, 0.01, 0.03, 0.1]))
        batch = int(generator.integers(chain.mini_batches))
        first, last = sorted(int(s) for s in generator.integers(0, chain.steps + 1, 2))
        if generator.random() < 0.5:
            last = min(chain.steps, first + int(generator.integers(1, 4)))
        shift[chain.jobs[batch, first : last + 1]] += generator.normal() * far
        return shift


def _hardly_worse(score: Score, least: Score, tolerance: float) -> bool:
    """Whether a score is no worse than ``tolerance`` times another: in lateness, and if that is no smaller, in the objective."""
    if tolerance == 1.0:
        return score <= least
    judged = 0 if score[0] != least[0] else 1
    return score[judged] <= least[judged] * tolerance


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _other_choices(choices: JointOptions, cores: int, near_limits: bool, generator: np.random.Generator) -> JointOptions:
    kind = int(generator.integers(9 if near_limits else 8))
    if kind == 8:
        return replace(choices, fast_load_limit=float(generator.choice(FAST_LOAD_LIMITS)))
    if kind == 7:
        return replace(choices, occupancy_exponent=float(generator.choice(OCCUPANCY_EXPONENTS)))
    if kind == 0:
        return replace(choices, retained_fraction=float(np.clip(choices.retained_fraction + generator.normal() * 0.1, 0.1, 1.0)))
    if kind == 1:
        return replace(choices, prefetch_fraction=float(np.clip(choices.prefetch_fraction + generator.normal() * 0.1, 0.1, 1.0)))
    if kind == 2:
        streamed = float(generator.choice(STREAMED_SHARES)) if near_limits else math.inf if choices.streamed_share == 0.0 else 0.0
        return replace(choices, streamed_share=streamed)
    if kind == 3:
        return replace(choices, fast_link_price=float(generator.choice([0.0, 0.3, 1.0])))
    if kind == 4:
        return replace(choices, link_load_limit=float(generator.choice([1.0, 1.5, 2.0, 3.0, math.inf])))
    if kind == 5:
        return replace(choices, core_wait_ratio=float(generator.choice([0.0, _SLIGHT_WAIT, 0.5, 1.0, 2.0, 4.0])))
    return replace(choices, release_delay_positions=max(0, choices.release_delay_positions + int(np.rint(generator.normal() * cores))))


def _other_blocks(chain: Chain, blocks: tuple[Block, ...], generator: np.random.Generator) -> tuple[Block, ...]:
    """Split a block, join two, move an end, or change how many mini-batches go together."""
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
    return (*blocks[:at], replace(block, group=int(generator.integers(1, chain.mini_batches + 1))), *blocks[at + 1 :])
