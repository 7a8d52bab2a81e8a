"""A stronger bound where every job wants some bandwidth: what cores can run at one instant, and for
how long.

A *configuration* says which kind of job every core runs, or none; a unit of the virtual clock on
which nobody stalls takes max(1, sum of demands) seconds. A mapping spends so long on each
configuration that every job is done, so that this program is a bound:

    min  sum_p y[p] max(1, S[p])   with   sum_p y[p] (sum of 1 / latency[j, c] over p's cores c that
    run j)  >=  n[j]

Columns are generated (Gilmore and Gomory, 1961): at prices w[j, c] = price[j] / latency[j, c], a
knapsack over the bus finds the best configuration, in which no more jobs of a kind run than there
are: a job does not run beside itself. If none is worth more than r max(1, S), the prices divided by
r are a solution of the dual, and their sum is a bound (Farley, 1990), whatever the solver of the
program answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.linear_program import LinearProgram
from loadmaster.core.progress import NO_DEADLINE, Deadline
from loadmaster.mapping.bounds.job_kinds import JobKinds
from loadmaster.mapping.group import Group, Queues

_CLOSE = 1e-4
"""Relative difference between program and bound at which more columns are not worth it."""
_ROUNDS, _PATIENCE = 100, 10
"""How often columns are generated, a millisecond or two each, and how often in vain: rounding the
bus may keep the two apart."""


@dataclass(frozen=True, eq=False)
class ConfigurationBound:
    """``makespan`` in seconds: no mapping takes less. ``core`` of every job as the program's
    solution has it, rounded."""

    makespan: float
    core: Ints


def configuration_bound(
    group: Group, queues: Queues, makespan: float, deadline: Deadline = NO_DEADLINE
) -> ConfigurationBound | None:
    """Bound the makespan by the program; None where the group is too large, some jobs want no
    bandwidth, or there is no time.

    ``queues`` is a known mapping of this ``makespan``, whose configurations are the first columns.
    """
    if not group.every_job_uses_bandwidth or not makespan > 0:
        return None
    kinds = JobKinds(group, makespan)
    if not kinds.usable:
        return None
    program = _MasterProgram(kinds)
    for together in kinds.running(queues):
        program.add(*together)
    best, least, stuck = 0.0, np.inf, 0
    for _ in range(_ROUNDS):
        if deadline.passed():
            break
        value, bound = program.improve()
        best = max(best, bound)
        stuck = 0 if value < least * (1 - _CLOSE / 10) else stuck + 1
        least = min(least, value)
        if best >= makespan or value <= best * (1 + _CLOSE) or stuck == _PATIENCE:
            break
    return ConfigurationBound(min(best, makespan), program.rounded()) if best else None


class _MasterProgram:
    """The master program: a row per kind of job, a column per configuration; times are relative to
    the known makespan."""

    def __init__(self, kinds: JobKinds) -> None:
        self.kinds = kinds
        self.latency = kinds.latency
        self.demand = kinds.demand
        self.configurations: list[tuple[Ints, Ints]] = []
        self.program = LinearProgram("the bound of a mapping")
        self.program.rows(kinds.count, np.inf)
        for job in range(len(self.latency)):
            for core in np.flatnonzero(np.isfinite(self.latency[job])).tolist():
                self.add(np.array([job]), np.array([core]))

    def improve(self) -> tuple[float, float]:
        """Solve, price, add what is worth it; the program's value and a bound, both in seconds."""
        price = np.maximum(0.0, self.program.solve().row_duals)
        worth = np.where(np.isfinite(self.latency), price[:, None] / self.latency, 0.0)
        best = self.kinds.best(worth)
        for jobs in (best.within_jobs, best.beyond_jobs):
            self.add(jobs[jobs >= 0].astype(np.int64), self.kinds.slot[jobs >= 0])
        # Beyond the bus, worth <= S + beyond, which is at most (1 + beyond) S only where that is
        # not negative.
        excess = (
            max(best.within, 1e-300)
            if np.isneginf(best.beyond)
            else max(best.within, 1.0 + max(0.0, best.beyond))
        )
        value = float(self.kinds.count @ price)
        return value * self.kinds.makespan, value / excess * self.kinds.slack * self.kinds.makespan

    def rounded(self) -> Ints:
        """Core of every job: kinds of cores by the program's shares of a kind of job, and few cores
        of a kind, filled one after another.

        Jobs that fill the bus anyway are best in few queues: so there are some of them as long as
        another core runs something frugal.
        """
        weight = self.program.solve().values
        share = np.zeros_like(self.latency)
        for (jobs, kinds), seconds in zip(self.configurations, weight.tolist(), strict=True):
            np.add.at(share, (jobs, kinds), seconds / self.latency[jobs, kinds])
        return self.kinds.rounded(share, float(weight.sum()) * (1 + _CLOSE))

    def add(self, jobs: Ints, kinds: Ints) -> None:
        """A column for what runs at once: kinds of jobs, and the kind of core of each."""
        if not len(jobs):
            return
        done = np.bincount(
            jobs, weights=1.0 / self.latency[jobs, kinds], minlength=len(self.latency)
        )
        rows = np.flatnonzero(done)
        self.configurations.append((jobs, kinds))
        seconds = max(1.0, float(self.demand[jobs, kinds].sum()))
        self.program.entries(rows, self.program.columns(seconds, 0.0, np.inf), done[rows])
