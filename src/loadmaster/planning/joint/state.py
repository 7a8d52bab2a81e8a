"""States of the joint search, and the order of jobs that a state decodes to: blocks of operators,
run by groups of mini-batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.units import PICOSECONDS
from loadmaster.planning.goal import Goal
from loadmaster.planning.joint.problem import Chain, JointOptions, JointProblem


@dataclass(frozen=True)
class Block:
    """Steps up to ``end`` (from the end of the block before), run for ``group`` mini-batches at a
    time: each group runs all steps of the block before the next group begins."""

    end: int
    group: int


def order_of(chain: Chain, blocks: Sequence[Block]) -> Ints:
    """A network's jobs in the order of its blocks."""
    parts, first = [], 0
    for block in blocks:
        for begin in range(0, chain.mini_batches, block.group):
            parts.append(chain.jobs[begin : begin + block.group, first : block.end].T.reshape(-1))
        first = block.end
    return np.concatenate(parts)


_MOST_ENDS = 512
"""Most steps at which a block may end, so that choosing blocks takes bounded time."""


def _ends(chain: Chain) -> Ints:
    """Steps before which blocks may end, including 0 and the last. In long chains: of every stretch
    the step over which the fewest bytes are alive."""
    if chain.steps <= _MOST_ENDS:
        return np.arange(chain.steps + 1)
    bounds = np.linspace(1, chain.steps, _MOST_ENDS).astype(np.int64)
    least = [
        first + int(np.argmin(chain.passed[first:last]))
        for first, last in pairwise(bounds.tolist())
    ]
    return np.array([0, *least, chain.steps], dtype=np.int64)


def best_blocks(chain: Chain, room: int) -> tuple[Block, ...]:
    """Blocks that bring the fewest bytes into ``room`` bytes of fast memory, by dynamic programming
    over the ends of blocks.

    The weights of a block stay for all its groups, unless there is only one group. The running
    group holds its activations, the others those that are alive at the block's ends. Bytes beyond
    ``room`` are counted as moved out and in again. O(steps + ends^2 x group sizes) for at most 512
    ends.
    """
    if chain.mini_batches == 1:
        # All blocks give the same order.
        return (Block(chain.steps, 1),)
    cuts = _ends(chain)
    # Cached by value: every search of a workload needs the same blocks.
    sums = [np.concatenate([[0], np.cumsum(chain.weights)])[cuts], np.append(chain.passed, 0)[cuts]]
    largest = [np.maximum.reduceat(column, cuts[:-1]) for column in (chain.live, chain.weights)]
    chosen = _fewest_bytes(
        chain.mini_batches, room, *(column.tobytes() for column in (*sums, *largest))
    )
    return tuple(Block(int(cuts[end]), size) for end, size in chosen)


@lru_cache(maxsize=1024)
def _fewest_bytes(batches: int, room: int, *columns: bytes) -> tuple[tuple[int, int], ...]:
    """Ends of the best blocks, as indices of allowed ends, and their group sizes.

    ``columns`` are int64 arrays as bytes. By allowed end: bytes of all weights before it, and of
    activations alive across it. By stretch between two ends: the largest live activations, and the
    largest weights of one step.
    """
    total, passed, most_live, most_weights = (
        np.frombuffer(column, dtype=np.int64) for column in columns
    )
    steps = len(most_live)
    sizes = [size for size in range(1, batches + 1) if batches % size == 0]
    cost = np.full(steps + 1, np.inf)
    cost[0] = 0.0
    chosen_first, chosen_size = np.zeros((2, steps + 1), dtype=np.int64)
    for first in range(steps):
        ends = slice(first + 1, steps + 1)
        weights = total[ends] - total[first]
        live = np.maximum.accumulate(most_live[first:])
        largest = np.maximum.accumulate(most_weights[first:])
        held = np.maximum(passed[first], passed[ends])
        for size in sizes:
            groups = batches // size
            kept = weights if groups > 1 else largest
            need = kept + size * live + (batches - size) * held
            excess = np.maximum(0, need - room)
            # Either weights come in again for every group, or activations go out and in again.
            moved = 2.0 * np.minimum(excess, batches * np.maximum(live, held)) * groups
            if groups > 1:
                moved = np.minimum(np.minimum(excess, kept) * (groups - 1), moved)
            value = cost[first] + weights + moved + 1e-9 * size
            better = value < cost[ends]
            chosen_first[ends][better] = first
            chosen_size[ends][better] = size
            cost[ends] = np.where(better, value, cost[ends])
    blocks: list[tuple[int, int]] = []
    end = steps
    while end:
        blocks.append((end, int(chosen_size[end])))
        end = int(chosen_first[end])
    return tuple(reversed(blocks))


ENERGY_ONLY = 1e6
"""Energy weight at which each job goes to its core of least energy, whatever its time there."""
_SLIGHT_WAIT = 0.25
"""A small core wait ratio: a job only refuses cores on which it is several times slower."""
_LEAD = 0.1
"""The fetch lead that is tried."""


def policy_values(problem: JointProblem) -> Mapping[str, tuple[Any, ...]]:
    """Values of every number of the policy that the search tries on this problem."""
    goal = problem.goal
    values: dict[str, tuple[Any, ...]] = {
        "streamed_share": (0.0, 0.5, 0.8, 1.0, 1.25, math.inf),
        "core_wait_ratio": (0.0, _SLIGHT_WAIT, 1.0, 4.0),
        "prefetch_fraction": (*(0.0,) * problem.copies_are_slow, 0.3, 0.5, 0.75, 1.0),
        "link_load_limit": (1.5, 2.0, 3.0, math.inf),
    }
    if goal.needs_energy:
        values["energy_weight"] = (0.0, 0.3, 1.0, 3.0, ENERGY_ONLY)
        values["link_prices"] = ((1.0, 0.0), problem.energy_prices)
    if goal.urgent:
        values["urgent_networks_first"] = (False, True)
    if goal.release.any() and (goal.latency_network or any(due for *_, due in goal.timings())):
        values["wait_for_releases"] = (False, True)
    return values


def first_policies(problem: JointProblem) -> Iterator[JointOptions]:
    """Yield the policies that are tried with the given orders."""
    cores, goal = problem.table.compute.shape[1], problem.goal
    if goal.objective == "energy":
        for delay, weight in itertools.product((0, cores), (0.0, 1.0, ENERGY_ONLY)):
            yield JointOptions(
                release_delay_positions=delay,
                streamed_share=math.inf,
                link_prices=problem.energy_prices,
                energy_weight=weight,
            )
        return
    waiting = JointOptions(release_delay_positions=cores, core_wait_ratio=_SLIGHT_WAIT)
    every = [JointOptions(), waiting]
    if problem.fetches_may_wait:
        every.append(replace(waiting, fetch_lead=_LEAD))
    if goal.urgent:
        every += [replace(policy, urgent_networks_first=True) for policy in every]
    yield from every


@dataclass(frozen=True, eq=False)
class State:
    """A state of the joint search: an order of jobs, by blocks and keys, and a policy.

    Jobs are sorted by ``begin[n] + pace[n] * (p + lag * b) + shift``: ``p`` is the share of the
    work of network ``n`` that precedes the job in the order of its blocks, ``b`` its mini-batch.
    Each mini-batch is ``lag`` behind the one before, so that one can do arithmetic while another
    waits for links.
    """

    blocks: tuple[tuple[Block, ...], ...]
    begin: tuple[float, ...]
    pace: tuple[float, ...]
    policy: JointOptions
    shift: Floats | None = None
    lag: float = 0.0

    def orders_as(self, other: State) -> bool:
        """Whether the order is certainly that of another state: they differ in the policy alone."""
        names = ("blocks", "begin", "pace", "lag", "shift")
        return all(getattr(self, name) is getattr(other, name) for name in names)


def keys_of(state: State, problem: JointProblem) -> Floats:
    """The keys of all jobs without ``shift``."""
    width = problem.width
    keys = np.zeros(len(width))
    for chain, blocks, begin, pace in zip(
        problem.chains, state.blocks, state.begin, state.pace, strict=True
    ):
        order = order_of(chain, blocks)
        elapsed = np.cumsum(width[order])
        keys[order] = begin + pace * (elapsed - width[order] / 2) / elapsed[-1]
        keys[chain.jobs] += pace * state.lag * np.arange(chain.mini_batches)[:, None]
    return keys


def order_by(state: State, problem: JointProblem) -> Ints:
    """All jobs in the order of their keys, each after those that it depends on. O(jobs log jobs +
    dependencies)."""
    keys = keys_of(state, problem)
    if state.shift is not None:
        keys = problem.after_sources(keys + state.shift)
    return np.asarray(np.argsort(keys, kind="stable"), dtype=np.int64)


def timed_keys(goal: Goal, done: Floats, own: Floats) -> Iterator[Floats]:
    """Yield sort keys of jobs with release times and deadlines, as shares of the time until the
    last deadline.

    Each job belongs to work with one release and one deadline (a mini-batch, or all mini-batches of
    a network) that takes ``own`` seconds, of which ``done`` precede the job. The keys are: the
    deadline; the latest start that meets it; an even spread between release and deadline; and the
    release. Work without a deadline is due at the end.
    """
    counts = np.diff(goal.first)
    dated = np.array([goal.is_due(b) for b in range(len(counts))])
    came = goal.job_release / PICOSECONDS
    last = max(float((came + own).max()), float((goal.due[dated] / PICOSECONDS).max(initial=0.0)))
    until = np.repeat(np.where(dated, goal.due / PICOSECONDS, last), counts)
    for keys in (
        until,
        until - (own - done),
        came + done / own * np.maximum(0.0, until - came),
        came,
    ):
        # A job that is ordered before its release would hold memory and wait.
        yield np.maximum(keys, came) / last + 1e-9 * done / own


LAGS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Lags that are tried, as shares of a network's work."""
SHARES = (0.8, 0.5, 0.3)
"""Shares of the fast memory for which blocks are chosen."""


def given_states(problem: JointProblem, given: Sequence[Ints]) -> Iterator[State]:
    """Yield a state for every given order and first policy, with the order encoded in
    ``shift``, relative to whole networks side by side."""
    plain = _plain(problem)
    for order in given:
        keys = np.empty(len(order))
        keys[order] = np.arange(len(order)) / len(order)
        shift = keys - keys_of(plain, problem)
        for policy in first_policies(problem):
            yield replace(plain, policy=policy, shift=shift)


def starts(problem: JointProblem) -> Iterator[State]:
    """Yield the starts: orders by release and deadline, or mini-batches at a lag; then blocks for
    shares of the fast memory, with networks side by side and one after another."""
    plain = _plain(problem)
    if problem.goal.is_timed:
        yield from _timed(problem, plain)
    elif len(problem.chains) == 1 and problem.chains[0].mini_batches > 1:
        yield from (replace(plain, lag=lag) for lag in LAGS)
    yield from _in_blocks(problem, plain)


def _plain(problem: JointProblem) -> State:
    """A state with one block for all mini-batches of a network, and networks side by side."""
    chains = problem.chains
    whole = tuple((Block(chain.steps, chain.mini_batches),) for chain in chains)
    return State(whole, (0.0,) * len(chains), (1.0,) * len(chains), JointOptions())


def _in_blocks(problem: JointProblem, plain: State) -> Iterator[State]:
    """Yield states with the best blocks for shares of the fast memory."""
    urgency = problem.goal.urgency[[chain.jobs[0, 0] for chain in problem.chains]]
    in_turn = tuple(np.argsort(np.argsort(-urgency, kind="stable")).tolist())
    for begin, share in itertools.product(dict.fromkeys((plain.begin, in_turn)), SHARES):
        room = int(problem.capacity * share)
        room //= len(problem.chains) if begin == plain.begin else 1
        blocks = tuple(best_blocks(chain, room) for chain in problem.chains)
        yield replace(plain, blocks=blocks, begin=begin)


def _timed(problem: JointProblem, plain: State) -> Iterator[State]:
    """Yield states ordered by release times and deadlines of mini-batches."""
    goal = problem.goal
    periodic = {name for name, period, _ in goal.timings() if period}
    for share in (SHARES[0], SHARES[-1]):
        blocks = tuple(
            (Block(chain.steps, 1),)
            if info.name in periodic
            else best_blocks(chain, int(problem.capacity * share) // len(problem.chains))
            for chain, info in zip(problem.chains, problem.workload.networks, strict=True)
        )
        state = replace(plain, blocks=blocks)
        base = keys_of(state, problem)
        for keys in timed_keys(goal, *_work_before(problem, blocks, periodic)):
            yield replace(state, shift=keys - base)


def _work_before(
    problem: JointProblem,
    blocks: Sequence[tuple[Block, ...]],
    periodic: set[str],
) -> tuple[Floats, Floats]:
    """Seconds of work before each job, and in total, within its mini-batch if the network is
    periodic, else within its network."""
    width = problem.width
    done, own = np.zeros(len(width)), np.zeros(len(width))
    for chain, mine, info in zip(problem.chains, blocks, problem.workload.networks, strict=True):
        order = order_of(chain, mine)
        parts = np.split(order, chain.mini_batches) if info.name in periodic else [order]
        for part in parts:
            done[part] = np.cumsum(width[part]) - width[part]
            own[part] = width[part].sum()
    return done, own
