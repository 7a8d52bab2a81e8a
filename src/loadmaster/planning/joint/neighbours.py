"""Designs of orders, and what is changed about one by a step of the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.planning.joint.orders import Block, Chain, best_blocks
from loadmaster.planning.joint.problem import JointOptions, JointProblem

OCCUPANCY_EXPONENTS = (1.0, 0.7, 0.3)
"""How much bytes and time of occupancy count against what a stay saves."""

STREAMED_SHARES = (0.0, 0.5, 0.8, 1.0, 1.25, math.inf)
"""Of the main link's time while jobs run, in which they may stream what is used once."""

FAST_LOAD_LIMITS = (0.7, 1.0, 1.4, math.inf)
"""Times that the fast link may be busy as long as the main one before nothing more stays."""

FETCH_LEADS = (0.02, 0.1, 0.3, math.inf)
"""Shares of all jobs' time by which fetches are early at least before they give way."""

SLIGHT_WAIT = 0.25
"""Seconds that a job waits for a core on which it is a second faster: only cores on which it is
many times slower are refused."""

ENERGY_ONLY = 1e6
"""Weight of energy at which each job goes to the core of least energy, whatever time it takes
there."""

LAGS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Shares of a network's work by which each of its mini-batches is behind the one before."""

_LAG_STEP = 0.01
"""Standard deviation by which a random change moves such a share."""

T = TypeVar("T")


@dataclass(frozen=True)
class Design:
    """What an order is made of: blocks for every network, when each network begins and how fast it
    goes, and what is varied beside.

    Network ``n`` is at ``begin[n] + pace[n] * p`` when the share ``p`` of its work is done; jobs of
    all networks are ordered by that, each shifted by its ``shift``, but for what they depend on.
    Each mini-batch is ``lag`` of all work behind the one before, so that one may do arithmetic
    while another waits for links; among several networks there is always such a one, and ``lag`` is
    0.
    """

    blocks: tuple[tuple[Block, ...], ...]
    begin: tuple[float, ...]
    pace: tuple[float, ...]
    choices: JointOptions
    shift: Floats | None = None
    lag: float = 0.0


class Neighbours:
    """Changes of designs for one problem: of blocks, of when networks begin and how fast they go,
    of single jobs, and of choices."""

    def __init__(self, problem: JointProblem, chains: Sequence[Chain]) -> None:
        self._problem, self._chains = problem, chains
        self._cores = problem.table.compute.shape[1]
        self._lags = LAGS if len(chains) == 1 and chains[0].mini_batches > 1 else ()
        # Cores on which every job takes as long are of a kind.
        self._kinds = np.unique(problem.table.compute, axis=1, return_inverse=True)[1].reshape(-1)

    def changes(self, at: Callable[[], Design]) -> Iterator[Design]:
        """The design that ``at`` gives, with one thing changed: how memory is filled, the lag, a
        network's blocks, begin or pace."""
        for name, values in self._grid(at):
            for value in values:
                if getattr(at().choices, name) != value:
                    yield replace(at(), choices=replace(at().choices, **{name: value}))
        for lag in self._lags:
            if at().lag != lag:
                yield replace(at(), lag=lag)
        for n, options in enumerate(self._alternatives):
            for blocks in options:
                if at().blocks[n] != blocks:
                    yield replace(at(), blocks=_with(at().blocks, n, blocks))
            for step in (-0.5, -0.2, 0.2, 0.5) if len(self._chains) > 1 else ():
                yield replace(at(), begin=_with(at().begin, n, at().begin[n] + step))
            for factor in (0.5, 0.75, 1.33, 2.0) if len(self._chains) > 1 else ():
                yield replace(at(), pace=_with(at().pace, n, at().pace[n] * factor))

    def of(self, design: Design, generator: np.random.Generator) -> Design:
        """A design that differs in one thing, at random."""
        move = generator.random()
        if move < 0.25:
            return replace(design, choices=self._other_choices(design.choices, generator))
        n = int(generator.integers(len(self._chains)))
        if move < 0.33 and self._lags:
            return replace(design, lag=abs(design.lag + float(generator.normal()) * _LAG_STEP))
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

    @cached_property
    def _alternatives(self) -> list[list[tuple[Block, ...]]]:
        """Blocks that are tried for every network; a short search does not come to them."""
        return [self._blocks_of(chain) for chain in self._chains]

    def _blocks_of(self, chain: Chain) -> list[tuple[Block, ...]]:
        assert self._problem.target.fast is not None
        room = self._problem.target.fast.capacity
        options = {
            best_blocks(chain, int(room * share)): None for share in (0.8, 0.5, 0.3, 0.2, 0.1, 0.05)
        }
        options |= {
            (Block(chain.steps, group),): None
            for group in range(1, chain.mini_batches + 1)
            if chain.mini_batches % group == 0
        }
        return list(options)

    def _grid(self, at: Callable[[], Design]) -> Iterator[tuple[str, tuple[Any, ...]]]:
        goal = self._problem.goal
        if goal.needs_energy:
            yield "energy_weight", (0.0, 1.0, ENERGY_ONLY)
            yield "fast_link_price", (self._problem.energy_price,)
        if goal.pressing:
            yield "urgent_networks_first", (False, True)
        yield "fast_link_price", (0.0, 0.3, 1.0)
        if self._problem.near_limits:
            yield "fast_load_limit", FAST_LOAD_LIMITS
        yield "occupancy_exponent", OCCUPANCY_EXPONENTS
        yield "link_load_limit", (1.5, 2.0, 3.0, math.inf)
        yield "streamed_share", STREAMED_SHARES if self._problem.near_limits else (math.inf, 0.0)
        yield (
            "release_delay_positions",
            (0, self._cores // 2, self._cores, 2 * self._cores, 4 * self._cores),
        )
        yield "core_wait_ratio", (0.0, SLIGHT_WAIT, 1.0, 4.0)
        yield "prefetch_fraction", (0.5, 0.75, 1.0)
        if self._problem.fetches_may_wait:
            yield "fetch_lead", FETCH_LEADS
        yield "retained_fraction", (0.8, 0.9, 1.0)
        if self._problem.target.main.in_place and self._problem.target.copy is not None:
            yield "fetched_back", (False, True)
        if self._kinds.any():
            yield (
                "core_prices",
                tuple(
                    self._priced(at().choices, kind, factor)
                    for kind in range(self._kinds.max() + 1)
                    for factor in (0.8, 1.25)
                ),
            )

    def _other_choices(self, choices: JointOptions, generator: np.random.Generator) -> JointOptions:
        """Change one choice, now and then one that matters for this goal only."""
        goal = self._problem.goal
        if goal.needs_energy and generator.random() < 0.15:
            energy_weight = float(generator.choice([0.0, 0.3, 1.0, 3.0, ENERGY_ONLY]))
            return replace(
                choices,
                energy_weight=energy_weight,
                fast_link_price=float(generator.choice([0.0, self._problem.energy_price])),
            )
        if self._kinds.any() and generator.random() < 0.15:
            kind, factor = (
                generator.integers(self._kinds.max() + 1),
                np.exp(generator.normal() * 0.3),
            )
            return replace(choices, core_prices=self._priced(choices, int(kind), float(factor)))
        if goal.pressing and generator.random() < 0.2:
            return replace(choices, urgent_networks_first=not choices.urgent_networks_first)
        return _other_choices(choices, self._cores, self._problem, generator)

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


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _other_choices(
    choices: JointOptions, cores: int, problem: JointProblem, generator: np.random.Generator
) -> JointOptions:
    kinds = [
        *range(8),
        *([8] if problem.near_limits else []),
        *([9] if problem.fetches_may_wait else []),
    ]
    kind = kinds[int(generator.integers(len(kinds)))]
    if kind == 9:
        return replace(choices, fetch_lead=float(generator.choice(FETCH_LEADS)))
    if kind == 8:
        return replace(choices, fast_load_limit=float(generator.choice(FAST_LOAD_LIMITS)))
    if kind == 7:
        return replace(choices, occupancy_exponent=float(generator.choice(OCCUPANCY_EXPONENTS)))
    if kind == 0:
        return replace(
            choices,
            retained_fraction=float(
                np.clip(choices.retained_fraction + generator.normal() * 0.1, 0.1, 1.0)
            ),
        )
    if kind == 1:
        return replace(
            choices,
            prefetch_fraction=float(
                np.clip(choices.prefetch_fraction + generator.normal() * 0.1, 0.1, 1.0)
            ),
        )
    if kind == 2:
        streamed = (
            float(generator.choice(STREAMED_SHARES))
            if problem.near_limits
            else math.inf
            if choices.streamed_share == 0.0
            else 0.0
        )
        return replace(choices, streamed_share=streamed)
    if kind == 3:
        return replace(choices, fast_link_price=float(generator.choice([0.0, 0.3, 1.0])))
    if kind == 4:
        return replace(
            choices, link_load_limit=float(generator.choice([1.0, 1.5, 2.0, 3.0, math.inf]))
        )
    if kind == 5:
        return replace(
            choices, core_wait_ratio=float(generator.choice([0.0, SLIGHT_WAIT, 0.5, 1.0, 2.0, 4.0]))
        )
    return replace(
        choices,
        release_delay_positions=max(
            0, choices.release_delay_positions + int(np.rint(generator.normal() * cores))
        ),
    )


def _other_blocks(
    chain: Chain, blocks: tuple[Block, ...], generator: np.random.Generator
) -> tuple[Block, ...]:
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
    return (
        *blocks[:at],
        replace(block, group=int(generator.integers(1, chain.mini_batches + 1))),
        *blocks[at + 1 :],
    )
