"""A stronger bound where every job wants some bandwidth: what cores can run at one instant, and for how long.

A *configuration* says which kind of job every core runs, or none; a unit of the virtual clock on which nobody stalls takes
max(1, sum of demands) seconds. A mapping spends so long on each configuration that every job is done, so that this program is a bound:

    min  sum_p y[p] max(1, S[p])   with   sum_p y[p] (sum of 1 / latency[j, c] over p's cores c that run j)  >=  n[j]

Columns are generated (Gilmore and Gomory, 1961): at prices w[j, c] = price[j] / latency[j, c], a knapsack over the bus finds the best
configuration. If none is worth more than r max(1, S), the prices divided by r are a solution of the dual, and their sum is a bound
(Farley, 1990), whatever the solver of the program answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.deadline import NO_DEADLINE, Deadline
from loadmaster.core.packages import package
from loadmaster.core.rows import distinct_rows
from loadmaster.mapping.group import Group, Queues
from loadmaster.mapping.timeline import timeline

_WORK = 3_000_000
"""Cores x kinds of jobs x parts of the bus that pricing looks at, about two milliseconds."""
_FINEST, _COARSEST = 2**12, 2**8
"""Parts of the bus."""
_CLOSE = 1e-4
"""Relative difference between program and bound at which more columns are not worth it."""
_ROUNDS, _PATIENCE = 100, 10
"""How often columns are generated, a millisecond or two each, and how often in vain: rounding the bus may keep the two apart."""
_SMALL = 1e-7
"""Share of the makespan that a kind of job must at least take to be looked at."""


@dataclass(frozen=True, eq=False)
class ConfigurationBound:
    """``makespan`` in seconds: no mapping takes less. ``core`` of every job as in the program's solution, rounded."""

    makespan: float
    core: Ints


def configuration_bound(group: Group, queues: Queues, makespan: float, deadline: Deadline = NO_DEADLINE) -> ConfigurationBound | None:
    """Bound the makespan by the program; None where the group is too large, some jobs want no bandwidth, or there is no time.

    ``queues`` is a known mapping of this ``makespan``, whose configurations are the first columns.
    """
    if not group.every_job_uses_bandwidth or not makespan > 0:
        return None
    program = _Program(group, makespan)
    if program.grid < _COARSEST or not len(program.latency):
        return None
    program.add_mapping(queues)
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
    return ConfigurationBound(best, program.rounded()) if best else None


class _Program:
    """The master program: a row per kind of job, a column per configuration; times are relative to ``makespan``."""

    def __init__(self, group: Group, makespan: float) -> None:
        highspy = package("highspy", "the bound of a mapping")

        rows = np.hstack([np.where(group.allowed, group.latency, np.inf), np.where(group.allowed, group.demand, 0.0)])
        _, columns, _ = distinct_rows(rows.reshape(2 * group.jobs, group.cores).T)
        self.kinds = [np.flatnonzero(columns == kind) for kind in range(columns.max() + 1)]
        first = [int(members[0]) for members in self.kinds]
        rows = np.hstack([rows[:, first], rows[:, [group.cores + core for core in first]]])
        kinds, self.kind_of, count = distinct_rows(rows)
        latency, demand = kinds[:, : len(first)] / makespan, kinds[:, len(first) :]
        kept = count * (latency * np.maximum(1.0, demand)).min(axis=1) > _SMALL
        self.kind_of = np.where(kept, np.cumsum(kept) - 1, -1)[self.kind_of]
        self.latency, self.demand, self.count = latency[kept], np.ascontiguousarray(demand[kept]), count[kept].astype(np.float64)
        self.makespan = makespan
        cores = np.array([len(members) for members in self.kinds], dtype=np.int32)
        self.slot_kind = np.repeat(np.arange(len(first)), cores)
        self.grid = min(_FINEST, 2 ** int(np.log2(max(1.0, _WORK / (group.cores * max(1, len(self.latency)))))))
        self.pricing = _native.ConfigurationPricing(self.demand, cores, self.grid)
        self.slack = 1.0 - (group.jobs + group.cores + 50) * 2.0**-51
        self.group = group
        self.configurations: list[tuple[Ints, Ints]] = []
        self.solver = highspy.Highs()
        self.solver.silent()
        self.infinity = highspy.kHighsInf
        for jobs in self.count.tolist():
            self.solver.addRow(jobs, self.infinity, 0, np.empty(0, dtype=np.int32), np.empty(0))
        for job in range(len(self.latency)):
            for kind in np.flatnonzero(np.isfinite(self.latency[job])).tolist():
                self._add(np.array([job]), np.array([kind]))

    def add_mapping(self, queues: Queues) -> None:
        """A column for every set of jobs that run at once."""
        core = np.repeat(np.arange(self.group.cores), np.diff(np.flatnonzero(np.append(self.group.jobs, queues[0]) == self.group.jobs)) - 1)
        job = queues[0][queues[0] < self.group.jobs]
        kind = np.empty(self.group.cores, dtype=np.int64)
        for number, members in enumerate(self.kinds):
            kind[members] = number
        begin, end = timeline(self.group, queues)
        for instant in np.unique(begin):
            running = (begin[job] <= instant) & (instant < end[job]) & (self.kind_of[job] >= 0)
            if running.any():
                self._add(self.kind_of[job[running]], kind[core[running]])

    def improve(self) -> tuple[float, float]:
        """Solve, price, add what is worth it; the program's value and a bound, both in seconds."""
        self.solver.run()
        price = np.maximum(0.0, np.array(self.solver.getSolution().row_dual))
        worth = np.where(np.isfinite(self.latency), price[:, None] / self.latency, 0.0)
        best = self.pricing.best(worth)
        for jobs in (best.within_jobs, best.beyond_jobs):
            self._add(jobs[jobs >= 0].astype(np.int64), self.slot_kind[jobs >= 0])
        # Beyond the bus, worth <= S + beyond, which is at most (1 + beyond) S only where that is not negative.
        excess = max(best.within, 1e-300) if np.isneginf(best.beyond) else max(best.within, 1.0 + max(0.0, best.beyond))
        value = float(self.count @ price)
        return value * self.makespan, value / excess * self.slack * self.makespan

    def rounded(self) -> Ints:
        """Core of every job: kinds of cores by the program's shares of a kind of job, and few cores of a kind, filled one after another.

        Jobs that fill the bus anyway are best in few queues: so there are some of them as long as another core runs something frugal.
        """
        self.solver.run()
        weight = np.array(self.solver.getSolution().col_value)
        share = np.zeros_like(self.latency)
        for (jobs, kinds), seconds in zip(self.configurations, weight.tolist(), strict=True):
            np.add.at(share, (jobs, kinds), seconds / self.latency[jobs, kinds])
        latency = self.group.latency[:, [int(members[0]) for members in self.kinds]]
        kind = latency.argmin(axis=1)
        for number, row in enumerate(share):
            members = np.flatnonzero(self.kind_of == number)
            kind[members] = np.repeat(np.arange(len(row)), _apportioned(row, len(members)))
        own = latency[np.arange(self.group.jobs), kind]
        room = float(weight.sum()) * self.makespan * (1 + _CLOSE)
        load, core = np.zeros(self.group.cores), np.empty(self.group.jobs, dtype=np.int64)
        for job in np.argsort(-own, kind="stable").tolist():
            cores = self.kinds[kind[job]]
            ends = load[cores] + own[job]
            fits = ends <= room
            core[job] = cores[np.where(fits, -ends, np.inf).argmin() if fits.any() else ends.argmin()]
            load[core[job]] += own[job]
        return core

    def _add(self, jobs: Ints, kinds: Ints) -> None:
        if not len(jobs):
            return
        done = np.bincount(jobs, weights=1.0 / self.latency[jobs, kinds], minlength=len(self.latency))
        rows = np.flatnonzero(done).astype(np.int32)
        self.configurations.append((jobs, kinds))
        seconds = max(1.0, float(self.demand[jobs, kinds].sum()))
        self.solver.addCol(seconds, 0.0, self.infinity, len(rows), rows, done[rows])


def _apportioned(share: Floats, count: int) -> Ints:
    """Whole numbers in proportion to shares, ``count`` in all: the largest remainders are rounded up."""
    exact = share * (count / share.sum())
    whole = np.floor(exact + 1e-6).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: count - whole.sum()]] += 1
    return np.asarray(whole)
