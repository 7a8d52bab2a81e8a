"""Search over loop orders, and over what the fast memory is filled with along them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.joint.orders import Block, Chain, Ints, best_blocks, chains, order_of
from loadmaster.joint.problem import Choices, Evaluation, Floats, JointProblem

Progress = Callable[[int, int, int], None]
"""Called with evaluations done, evaluations in all, and the best makespan in picoseconds."""


@dataclass(frozen=True)
class Design:
    """What an order is made of: blocks for every network, when each network begins and how fast it goes, and what is varied beside.

    Network ``n`` is at ``begin[n] + pace[n] * p`` when the share ``p`` of its work is done; jobs of all networks are ordered by that,
    each shifted by its ``shift``, but for what they depend on.
    """

    blocks: tuple[tuple[Block, ...], ...]
    begin: tuple[float, ...]
    pace: tuple[float, ...]
    choices: Choices
    shift: Floats | None = None


@dataclass(frozen=True)
class Found:
    """The best evaluation, its order and choices, and how it was come by: evaluations and makespan at every improvement."""

    order: Ints
    choices: Choices
    evaluation: Evaluation
    history: tuple[tuple[int, int], ...]
    evaluations: int
    interrupted: bool = False


def improve(
    problem: JointProblem,
    given: Sequence[Ints],
    *,
    samples: int,
    seed: int,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Found:
    """Find an order, and stays along it, of small makespan.

    First the structures: blocks by dynamic programming for several shares of the fast memory, networks side by side or one after the other,
    the ``given`` orders, each with several ways to fill the memory. Then a (1+1) search that changes blocks, paces, shifts and choices at
    random and keeps what is no worse: ``samples`` evaluations in all. Only ``deadline`` (of :func:`time.monotonic`) or Ctrl-C ends it
    earlier, once there is an answer.
    """
    search = _Search(problem, samples, deadline, progress)
    try:
        search.run(given, np.random.default_rng(seed))
    except KeyboardInterrupt:
        search.interrupted = True
    return search.found(given)


class _Search:
    def __init__(self, problem: JointProblem, samples: int, deadline: float | None, progress: Progress | None) -> None:
        self.interrupted = False
        self._problem, self._samples, self._deadline, self._progress = problem, samples, deadline, progress
        self._chains = chains(problem.workload)
        self._best: tuple[Evaluation, Ints, Choices] | None = None
        self._design: Design | None = None
        self._least = -1
        self._history: list[tuple[int, int]] = []
        self._done = 0
        self._cores = problem.table.compute.shape[1]

    def run(self, given: Sequence[Ints], generator: np.random.Generator) -> None:
        for order, choices in itertools.product(given, self._first_choices()):
            if self._stop():
                return
            self._try(order, choices)
        for design in self._structures():
            if self._stop():
                return
            self._offer(design)
        self._refine(generator)

    def found(self, given: Sequence[Ints]) -> Found:
        if self._best is None:
            self._try(given[0], Choices())
        assert self._best is not None
        evaluation, order, choices = self._best
        return Found(order, choices, evaluation, tuple(self._history), self._done, self.interrupted)

    def _stop(self) -> bool:
        if self._best is not None and self._deadline is not None and time.monotonic() > self._deadline:
            self.interrupted = True
        return self.interrupted or (self._best is not None and self._done >= self._samples)

    def _try(self, order: Ints, choices: Choices) -> int:
        """Evaluate, and remember if it is the best so far; the makespan, or -1 if it never ends."""
        evaluation = self._problem.evaluate(order, choices)
        self._done += 1
        makespan = evaluation.makespan
        if makespan >= 0 and (self._best is None or makespan < self._best[0].makespan):
            self._best = (evaluation, order, choices)
            self._history.append((self._done, makespan))
        if self._progress is not None and self._best is not None:
            self._progress(self._done, self._samples, self._best[0].makespan)
        return makespan

    def _offer(self, design: Design) -> None:
        """Evaluate a design and go on from it if it is no worse than the last."""
        makespan = self._try(self._order(design), design.choices)
        if makespan >= 0 and (self._design is None or makespan <= self._least):
            self._design, self._least = design, makespan

    def _first_choices(self) -> Iterator[Choices]:
        for slack in (0, self._cores, 4 * self._cores):
            yield Choices(slack=slack)

    def _structures(self) -> Iterator[Design]:
        networks = len(self._chains)
        fast = self._problem.target.fast
        assert fast is not None
        beside, in_turn = ((0.0,) * networks, "side by side"), (tuple(map(float, range(networks))), "in turn")
        seen: set[tuple[tuple[tuple[Block, ...], ...], tuple[float, ...]]] = set()
        for (begin, how), share in itertools.product((beside, in_turn)[: min(networks, 2)], (0.8, 0.5, 0.3)):
            room = int(fast.capacity * share) // (networks if how == "side by side" else 1)
            blocks = tuple(best_blocks(chain, room) for chain in self._chains)
            if (blocks, begin) in seen:
                continue
            seen.add((blocks, begin))
            for slack, once in itertools.product((0, self._cores, 4 * self._cores), (True, False)):
                yield Design(blocks, begin, (1.0,) * networks, Choices(slack=slack, once=once))

    def _order(self, design: Design) -> Ints:
        width = self._problem.width
        keys = np.zeros(len(width))
        for chain, blocks, begin, pace in zip(self._chains, design.blocks, design.begin, design.pace, strict=True):
            order = order_of(chain, blocks)
            elapsed = np.cumsum(width[order])
            keys[order] = begin + pace * (elapsed - width[order] / 2) / elapsed[-1]
        if design.shift is not None:
            keys = self._after_their_sources(keys + design.shift)
        return np.asarray(np.argsort(keys, kind="stable"), dtype=np.int64)

    def _after_their_sources(self, keys: Floats) -> Floats:
        """Keys raised to those of the jobs that each depends on; of equal keys, jobs of smaller index come first."""
        raised = keys.tolist()
        for job, record in enumerate(self._problem.workload.jobs):
            for before in record.after:
                if raised[before] > raised[job]:
                    raised[job] = raised[before]
        return np.array(raised)

    def _refine(self, generator: np.random.Generator) -> None:
        while self._design is not None and not self._stop():
            self._offer(self._neighbour(self._design, generator))

    def _neighbour(self, design: Design, generator: np.random.Generator) -> Design:
        move = generator.random()
        if move < 0.25:
            return replace(design, choices=_other_choices(design.choices, self._cores, generator))
        if move < 0.5:
            n = int(generator.integers(len(self._chains)))
            changed = _other_blocks(self._chains[n], design.blocks[n], generator)
            return replace(design, blocks=(*design.blocks[:n], changed, *design.blocks[n + 1 :]))
        if move < 0.75 and len(self._chains) > 1:
            n = int(generator.integers(len(self._chains)))
            begin, pace = list(design.begin), list(design.pace)
            begin[n] += float(generator.normal() * 0.2)
            pace[n] *= float(np.exp(generator.normal() * 0.3))
            return replace(design, begin=tuple(begin), pace=tuple(pace))
        return replace(design, shift=self._other_shift(design, generator))

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


def _other_choices(choices: Choices, cores: int, generator: np.random.Generator) -> Choices:
    kind = int(generator.integers(5))
    if kind == 0:
        return replace(choices, keep=float(np.clip(choices.keep + generator.normal() * 0.1, 0.1, 1.0)))
    if kind == 1:
        return replace(choices, lead=float(np.clip(choices.lead + generator.normal() * 0.1, 0.1, 1.0)))
    if kind == 2:
        return replace(choices, once=not choices.once)
    if kind == 3:
        return replace(choices, fast_price=float(generator.choice([0.0, 0.3, 1.0])))
    return replace(choices, slack=max(0, choices.slack + int(np.rint(generator.normal() * cores))))


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
