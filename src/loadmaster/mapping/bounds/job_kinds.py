"""Jobs and cores of a group that are alike, for programs with a row per kind of job and columns per
kind of core."""

from __future__ import annotations

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Floats, Ints, distinct_rows, ranges
from loadmaster.mapping.group import Group, Queues, core_and_position
from loadmaster.mapping.timeline import timeline

_WORK = 3_000_000
"""Cores x kinds of jobs x parts of the bus that pricing looks at, about two milliseconds."""
_NODES = 1_000_000
"""Nodes of branch and bound in pricing, times kinds of jobs times kinds of cores: about two
milliseconds."""
_SEARCHED = 1_000
"""Kinds of jobs times kinds of cores up to which there is branch and bound at all: finding its
price of the bus takes as long."""
_FINEST, _COARSEST = 2**12, 2**8
"""Parts of the bus."""
_SMALL = 1e-7
"""Share of the makespan that a kind of job must at least take to be looked at."""


class JobKinds:
    """Kinds of jobs on kinds of cores, and what cores can run at one instant at given prices; times
    are relative to ``makespan``.

    ``kind_of`` is the kind of every job, -1 where it is too short to matter; ``latency`` (infinite
    where a job cannot run, or takes longer than ``makespan``) and ``demand`` have the shape (kinds
    of jobs, kinds of cores), ``count`` says how many jobs there are of a kind, ``cores`` which
    cores, and ``slot`` is the kind of every core where those of a kind stand together.
    """

    def __init__(self, group: Group, makespan: float) -> None:
        group = group.within(makespan)
        rows = np.hstack([group.latency, group.usable_demand])
        _, self._core_kind, _ = distinct_rows(rows.reshape(2 * group.jobs, group.cores).T)
        sizes = np.bincount(self._core_kind).astype(np.int32)
        self.cores = [np.flatnonzero(self._core_kind == kind) for kind in range(len(sizes))]
        self._first = first = [int(members[0]) for members in self.cores]
        kinds, kind_of, count = distinct_rows(
            np.hstack([group.latency[:, first], group.usable_demand[:, first]])
        )
        latency = kinds[:, : len(first)] / makespan
        demand = kinds[:, len(first) :]
        kept = count * (latency * np.maximum(1.0, demand)).min(axis=1) > _SMALL
        self.kind_of = np.where(kept, np.cumsum(kept) - 1, -1)[kind_of]
        self.latency, self.count = latency[kept], count[kept]
        self.demand = np.ascontiguousarray(demand[kept])
        self.makespan, self.group = makespan, group
        self.slot = np.repeat(np.arange(len(first)), sizes)
        self.grid = min(
            _FINEST, 2 ** int(np.log2(max(1.0, _WORK / (group.cores * max(1, len(self.latency))))))
        )
        self.pricing = _native.ConfigurationPricing(
            self.demand, self.count.astype(np.int32), sizes, self.grid
        )
        self.slack = 1.0 - (group.jobs + group.cores + 50) * 2.0**-51

    @property
    def usable(self) -> bool:
        """Whether there is something to look at, and few enough kinds of jobs to do so."""
        return self.grid >= _COARSEST and len(self.latency) > 0

    def best(self, worth: Floats) -> _native.BestConfigurations:
        """What cores can run at one instant at a worth of each kind of job on each kind of core,
        within the bus and beyond it."""
        cells = self.latency.size
        return self.pricing.best(worth, _NODES // cells if cells <= _SEARCHED else 0)

    def rounded(self, share: Floats, room: float) -> Ints:
        """Core of every job: kinds of cores by the shares of its kind, shape (kinds of jobs, kinds
        of cores), longest jobs first.

        Of its kind, a job takes the fullest core that is done with it by ``room``: few queues are
        long, and others stay free for jobs that want all of the bus. O(jobs x cores).
        """
        group = self.group
        latency = group.latency[:, self._first]
        kind = latency.argmin(axis=1)
        for number, row in enumerate(share):
            members = np.flatnonzero(self.kind_of == number)
            if row.any():
                kind[members] = np.repeat(np.arange(len(row)), _apportioned(row, len(members)))
        own = latency[np.arange(group.jobs), kind]
        load = np.zeros(group.cores)
        core = np.empty(group.jobs, dtype=np.int64)
        for job in np.argsort(-own, kind="stable").tolist():
            alike = self.cores[kind[job]]
            ends = load[alike] + own[job]
            fits = ends <= room * self.makespan
            core[job] = alike[
                np.where(fits, -ends, np.inf).argmin() if fits.any() else ends.argmin()
            ]
            load[core[job]] += own[job]
        return core

    def running(self, queues: Queues) -> list[tuple[Ints, Ints]]:
        """Every set of jobs that a mapping runs at once: kinds of jobs, and kinds of cores.

        O(jobs x cores) memory.
        """
        times = timeline(self.group, queues)
        instants = np.unique(times[0])
        first, last = np.searchsorted(instants, times)
        core, _ = core_and_position(queues, self.group.cores)
        kind = np.full((len(instants), self.group.cores), -1)
        count = last - first
        kind[ranges(first, count), core.repeat(count)] = self.kind_of.repeat(count)
        sets = distinct_rows(kind)[0]
        return [(row[row >= 0], self._core_kind[row >= 0]) for row in sets if (row >= 0).any()]


def _apportioned(share: Floats, count: int) -> Ints:
    """Whole numbers in proportion to shares, ``count`` in all: the largest remainders are rounded
    up."""
    exact = share * (count / share.sum())
    whole = np.floor(exact + 1e-6).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: count - whole.sum()]] += 1
    return np.asarray(whole)
