"""The states with which the joint search begins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.units import PICOSECONDS
from loadmaster.planning.goal import Goal
from loadmaster.planning.joint.problem import JointOptions, JointProblem
from loadmaster.planning.joint.state import (
    Block,
    Chain,
    State,
    best_blocks,
    first_policies,
    keys_of,
    order_of,
)


def timed_keys(goal: Goal, done: Floats, own: Floats) -> Iterator[Floats]:
    """Keys by which to sort jobs, as shares of the time until all is due.

    Each job belongs to work of ``own`` seconds that comes and is due together (a mini-batch, or a
    network whose mini-batches all do), of which ``done`` are before it. Jobs are sorted by the date
    when they are due; by the latest time at which they may start for that; evenly over the time
    that their work has; and by release. What is never due may take until the end.
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
        # A job that stands before its release would hold room and do nothing.
        yield np.maximum(keys, came) / last + 1e-9 * done / own


LAGS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Shares of a network's work by which each of its mini-batches is behind the one before."""
SHARES = (0.8, 0.5, 0.3)
"""Of the fast memory, for which blocks are chosen."""


def given_states(
    problem: JointProblem, chains: Sequence[Chain], given: Sequence[Ints]
) -> Iterator[State]:
    """Orders as they are, with every first policy. Blocks and distances say nothing of them: the
    search goes on from others."""
    plain = _plain(chains)
    for order in given:
        keys = np.empty(len(order))
        keys[order] = np.arange(len(order)) / len(order)
        shift = keys - keys_of(plain, problem, chains)
        for policy in first_policies(problem):
            yield replace(plain, policy=policy, shift=shift)


def starts(problem: JointProblem, chains: Sequence[Chain]) -> Iterator[State]:
    """Orders by dates, or mini-batches one after another at a distance; then blocks for shares of
    the fast memory, networks side by side and in turn; each with every first policy."""
    plain = _plain(chains)
    found: list[State] = []
    if problem.goal.is_timed:
        found += _timed(problem, chains, plain)
    elif len(chains) == 1 and chains[0].mini_batches > 1:
        found += [replace(plain, lag=lag) for lag in LAGS]
    found += _in_blocks(problem, chains, plain)
    for state, policy in itertools.product(found, first_policies(problem)):
        yield replace(state, policy=policy)


def _plain(chains: Sequence[Chain]) -> State:
    """All mini-batches of every network step by step, networks side by side."""
    whole = tuple((Block(chain.steps, chain.mini_batches),) for chain in chains)
    return State(whole, (0.0,) * len(chains), (1.0,) * len(chains), JointOptions())


def _in_blocks(problem: JointProblem, chains: Sequence[Chain], plain: State) -> Iterator[State]:
    """Blocks that bring the fewest bytes into a share of the fast memory."""
    assert problem.target.fast is not None
    networks, turn = len(chains), _turn(problem)
    side_by_side, in_turn = plain.begin, tuple(float(turn.index(n)) for n in range(networks))
    seen = set()
    for begin, share in itertools.product(dict.fromkeys((side_by_side, in_turn)), SHARES):
        room = int(problem.target.fast.capacity * share)
        room //= networks if begin == side_by_side else 1
        blocks = tuple(best_blocks(chain, room) for chain in chains)
        if (blocks, begin) not in seen:
            seen.add((blocks, begin))
            yield replace(plain, blocks=blocks, begin=begin)


def _turn(problem: JointProblem) -> list[int]:
    """Networks by how much they are waited for: the one whose latency counts, then by deadline."""
    goal, names = problem.goal, [info.name for info in problem.workload.networks]
    due = {name: deadline for name, _, deadline in goal.timings() if deadline is not None}
    return sorted(
        range(len(names)),
        key=lambda n: (
            names[n] != goal.latency_network,
            names[n] not in due,
            due.get(names[n], 0),
        ),
    )


def _timed(problem: JointProblem, chains: Sequence[Chain], plain: State) -> Iterator[State]:
    """States that follow the times at which mini-batches come and are due."""
    goal, fast = problem.goal, problem.target.fast
    assert fast is not None
    periodic = {name for name, period, _ in goal.timings() if period}
    for share in (SHARES[0], SHARES[-1]):
        blocks = tuple(
            (Block(chain.steps, 1),)
            if info.name in periodic
            else best_blocks(chain, int(fast.capacity * share) // len(chains))
            for chain, info in zip(chains, problem.workload.networks, strict=True)
        )
        state = replace(plain, blocks=blocks)
        base = keys_of(state, problem, chains)
        for keys in timed_keys(goal, *_work_before(problem, chains, blocks, periodic)):
            yield replace(state, shift=keys - base)


def _work_before(
    problem: JointProblem,
    chains: Sequence[Chain],
    blocks: Sequence[tuple[Block, ...]],
    periodic: set[str],
) -> tuple[Floats, Floats]:
    """Seconds before each job, and in all, of the work that comes with it: its mini-batch if those
    come apart, else its network."""
    width = problem.width
    done, own = np.zeros(len(width)), np.zeros(len(width))
    for chain, mine, info in zip(chains, blocks, problem.workload.networks, strict=True):
        order = order_of(chain, mine)
        parts = np.split(order, chain.mini_batches) if info.name in periodic else [order]
        for part in parts:
            done[part] = np.cumsum(width[part]) - width[part]
            own[part] = width[part].sum()
    return done, own
