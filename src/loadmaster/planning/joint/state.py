"""What the joint search changes, and the order of jobs that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.planning.joint.orders import Block, Chain, order_of
from loadmaster.planning.joint.problem import JointOptions, JointProblem


@dataclass(frozen=True, eq=False)
class State:
    """Blocks for every network, when it begins and how fast it goes, and the policy by which the
    memory is filled.

    Jobs are sorted by ``begin[n] + pace[n] * (p + lag * b) + shift``: ``p`` is the share of the
    work of network ``n`` that is done before the job in the order of its blocks, ``b`` its
    mini-batch. So each mini-batch is ``lag`` behind the one before, and one may do arithmetic while
    another waits for links.
    """

    blocks: tuple[tuple[Block, ...], ...]
    begin: tuple[float, ...]
    pace: tuple[float, ...]
    policy: JointOptions
    shift: Floats | None = None
    lag: float = 0.0


def keys_of(state: State, problem: JointProblem, chains: Sequence[Chain]) -> Floats:
    """The keys of all jobs, shifts left out."""
    width = problem.width
    keys = np.zeros(len(width))
    for chain, blocks, begin, pace in zip(
        chains, state.blocks, state.begin, state.pace, strict=True
    ):
        order = order_of(chain, blocks)
        elapsed = np.cumsum(width[order])
        keys[order] = begin + pace * (elapsed - width[order] / 2) / elapsed[-1]
        keys[chain.jobs] += pace * state.lag * np.arange(chain.mini_batches)[:, None]
    return keys


def order_by(state: State, problem: JointProblem, chains: Sequence[Chain]) -> Ints:
    """All jobs in the order of their keys, each after those that it depends on. O(jobs log jobs +
    dependencies)."""
    keys = keys_of(state, problem, chains)
    if state.shift is not None:
        keys = problem.after_sources(keys + state.shift)
    return np.asarray(np.argsort(keys, kind="stable"), dtype=np.int64)
