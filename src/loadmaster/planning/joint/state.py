"""What the joint search changes, and the order of jobs that it stands for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.planning.joint.orders import Block, Chain, order_of
from loadmaster.planning.joint.problem import JointOptions, JointProblem

ENERGY_ONLY = 1e6
"""Weight of energy at which each job goes to the core of least energy, whatever time it takes
there."""
_SLIGHT_WAIT = 0.25
"""Seconds that a job waits for a core on which it is a second faster: only cores on which it is
many times slower are refused."""
_LEAD = 0.1
"""Share of all jobs' time by which fetches are early at least before jobs come first."""


def policy_values(problem: JointProblem) -> Mapping[str, tuple[Any, ...]]:
    """The values that are tried for every number of the policy on this problem."""
    cores, goal = problem.table.compute.shape[1], problem.goal
    values: dict[str, tuple[Any, ...]] = {
        "release_delay_positions": (0, cores // 2, cores, 2 * cores, 4 * cores),
        "streamed_share": (0.0, 0.5, 0.8, 1.0, 1.25, math.inf)
        if problem.near_limits
        else (0.0, math.inf),
        "core_wait_ratio": (0.0, _SLIGHT_WAIT, 1.0, 4.0),
        "prefetch_fraction": (0.3, 0.5, 0.75, 1.0),
        "occupancy_exponent": (1.0, 0.7, 0.3),
        "retained_fraction": (0.8, 0.9, 1.0),
        "link_load_limit": (1.5, 2.0, 3.0, math.inf),
    }
    if problem.fetches_may_wait:
        values["fetch_lead"] = (_LEAD, math.inf)
    if goal.needs_energy:
        values["energy_weight"] = (0.0, 0.3, 1.0, 3.0, ENERGY_ONLY)
        values["fast_link_price"] = (0.0, problem.energy_price)
    if goal.urgent:
        values["urgent_networks_first"] = (False, True)
    return values


def first_policies(problem: JointProblem) -> Iterator[JointOptions]:
    """The policies with which every start is tried."""
    cores, goal = problem.table.compute.shape[1], problem.goal
    if goal.objective == "energy":
        for delay, weight in itertools.product((0, cores), (0.0, 1.0, ENERGY_ONLY)):
            yield JointOptions(
                release_delay_positions=delay,
                streamed_share=math.inf,
                fast_link_price=problem.energy_price,
                energy_weight=weight,
            )
        return
    share = 1.0 if problem.near_limits else math.inf
    waiting = JointOptions(release_delay_positions=cores, core_wait_ratio=_SLIGHT_WAIT)
    every = [
        JointOptions(),
        waiting,
        JointOptions(release_delay_positions=4 * cores, streamed_share=math.inf),
        JointOptions(release_delay_positions=4 * cores, streamed_share=share, link_load_limit=1.5),
        replace(waiting, release_delay_positions=4 * cores, streamed_share=share),
    ]
    if problem.fetches_may_wait:
        every.append(replace(waiting, fetch_lead=_LEAD))
    if goal.urgent:
        every += [replace(policy, urgent_networks_first=True) for policy in every]
    yield from every


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
