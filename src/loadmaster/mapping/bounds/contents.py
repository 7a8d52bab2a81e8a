"""A program over what every core holds and what cores run at one instant, for mappings whose
virtual clock ends within a range.

A *content* says how many jobs of each kind one core runs, one after another; it takes the sum of
their latencies of the virtual clock, so that no core holds more than the clock shows at the end.
With y the time of configurations (see ``configurations``) and z the number of cores with a content:

    min  sum_p y[p] max(1, S[p])       with, for every kind of job j and kind of core k,
         sum_p y[p] (p's cores of kind k that run j) / latency[j, k]  >=  sum_q z[k, q] q[j]
         (what is held is run) sum_k sum_q z[k, q] q[j]  >=  n[j],     sum_q z[k, q]  <=  cores[k],
         low  <=  sum_p y[p]  <=  high at_least[j, k]  <=  sum_q z[k, q] q[j]  <=  at_most[j, k]
         (what a search has split on)

Contents are whole, so that the program knows that four jobs that take 0.3 of the clock each fit on
no core. Both kinds of columns are generated: configurations by a knapsack over the bus, contents by
one over the clock. Whatever the solver answers, its prices are only evaluated: scaled until no
configuration is worth more than it costs, less the most that cores can hold at them.

That most comes from branch and bound over jobs of one kind after another, in real time and not in
parts of the clock: rounded down, jobs shorter than a part would take none of it. A branch that is
not looked at holds at most what it would if the rest were in shares (Dantzig, 1957); the greatest
of these and of the contents found is a limit, so that the bound holds however early the search
ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.linear_program import LinearProgram
from loadmaster.mapping.bounds.job_kinds import JobKinds
from loadmaster.mapping.group import Queues

_NODES = 4_000
"""Nodes of the search for the best content, about a millisecond at most."""
_CLOSE = 3e-4
"""Relative difference between program and bound at which more columns are not worth it."""
_ROUNDS, _PATIENCE = 50, 8
"""How often columns are generated for one range, about two milliseconds each, and how often in
vain."""
_ROUNDED = 1e-12
"""More than floating point adds or loses, relatively, in any sum here."""
_DEAR = 2.0
"""Cost of a job that is left out, or missing where some must be, so that every program has a
solution: twice the known makespan."""


@dataclass(frozen=True)
class Range:
    """Ends of the virtual clock, relative to the known makespan, and limits on how many jobs of a
    kind a kind of core holds."""

    low: float = 0.0
    high: float = 1.0 + 1e-9
    limits: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RangeBound:
    """``makespan``, relative to the known one: no mapping ``within`` the range takes less. How many
    jobs of each kind each kind of core holds."""

    within: Range
    makespan: float
    held: Floats
    rounds: int


class Contents:
    """The program, with all columns that came up so far: what a range forbids is shut, so that the
    solver goes on from the range before."""

    def __init__(self, kinds: JobKinds, queues: Queues) -> None:
        self.kinds, self.within = kinds, Range()
        self.possible = np.isfinite(kinds.latency) & (kinds.latency <= self.within.high)
        self.latency = np.where(self.possible, kinds.latency, 1.0)
        self.sizes = np.array([len(members) for members in kinds.cores], dtype=np.float64)
        jobs, cores = self.possible.shape
        self.run = np.arange(jobs * cores).reshape(jobs, cores)
        self.cover = jobs * cores + np.arange(jobs)
        self.room = jobs * (cores + 1) + np.arange(cores)
        self.clock = jobs * (cores + 1) + cores
        self.split: dict[tuple[int, int], int] = {}
        # From one solution to the next there are more columns: that one stays feasible, which suits
        # the primal method.
        self.program = LinearProgram("the bound of a mapping", simplex_strategy=4)
        low = np.zeros(self.clock + 1)
        low[self.cover], low[self.room] = kinds.count, -self.sizes
        self.program.rows(low, np.inf)
        self._column(1.0, {self.clock: 1.0})
        for row in self.cover.tolist():
            self._column(_DEAR, {row: 1.0})
        self._known: set[tuple[tuple[int, int], ...]] = set()
        # Of every content its column, the kind of core, and how many jobs of each kind.
        self.contents: dict[tuple[int, tuple[int, ...]], int] = {}
        for running in kinds.running(queues):
            self._add_configuration(*running)
        for job, core in zip(*np.nonzero(self.possible), strict=True):
            self._add_configuration(np.array([job]), np.array([core]))
        for held in kinds.held(queues):
            self._add_content(*held)

    def bound(self, within: Range, known: float, enough: float) -> RangeBound:
        """Bound the makespan of the mappings of a range: at least ``known`` anyway, and ``enough``
        is all that is asked."""
        self._enter(within)
        best, least, stuck, rounds = known, np.inf, 0, 0
        while rounds < _ROUNDS and stuck < _PATIENCE:
            rounds += 1
            value, bound, found = self._improve()
            best = max(best, bound)
            # The program with all columns is worth no more than with some: it cannot do better than
            # this value.
            if not found or best >= enough or value <= best * (1 + _CLOSE):
                break
            stuck = 0 if value < least * (1 - _CLOSE / 10) else stuck + 1
            least = min(least, value)
        return RangeBound(within, best, self._held(), rounds)

    def _enter(self, within: Range) -> None:
        """Set limits as a range has them."""
        self.within = within
        for cell in within.limits:
            if cell not in self.split:
                self._split(cell)
        # A kind of core holds at most this many jobs of a kind.
        self.most = np.where(self.possible, self.kinds.count[:, None], 0)
        for cell, row in self.split.items():
            low, high = within.limits.get(cell, (0, np.inf))
            self.program.bound_row(row, low, high)
            self.most[cell] = min(self.most[cell], high)
        self.program.bound_row(self.clock, within.low, within.high)
        limits = [
            np.inf if self._fits(core, np.array(jobs)) else 0.0 for core, jobs in self.contents
        ]
        self.program.bound_columns(np.array(list(self.contents.values())), 0.0, np.array(limits))

    def _fits(self, core: int, jobs: Ints) -> bool:
        return bool(
            (jobs <= self.most[:, core]).all() and jobs @ self.latency[:, core] <= self.within.high
        )

    def _improve(self) -> tuple[float, float, bool]:
        """Solve, price, add what is worth it; the program's value, a bound, and whether there was
        anything to add."""
        self.solved = self.program.solve()
        value = self.solved.objective
        price = np.resize(self.solved.row_duals, self.program.height)
        price[~np.isfinite(price)] = 0.0
        run = np.maximum(0.0, price[self.run])
        cover = np.maximum(0.0, price[self.cover])
        scale, found = self._scale(
            np.where(self.possible, run / self.latency, 0.0), float(price[self.clock])
        )
        run, cover = run * scale, cover * scale
        split = np.zeros_like(run)
        gains, losses = float(self.kinds.count @ cover), 0.0
        terms = [(float(price[self.clock]) * scale, (self.within.low, self.within.high))]
        for cell, limits in self.within.limits.items():
            split[cell] = price[self.split[cell]] * scale
            terms.append((float(split[cell]), limits))
        for each, (low, high) in terms:
            gains += max(0.0, each) * low
            losses += max(0.0, -each) * high
        worth = cover[:, None] - run + split
        worth += _ROUNDED * (cover[:, None] + run + np.abs(split))
        for core, size in enumerate(self.sizes.tolist()):
            latency = self.latency[:, core].copy()
            most = self.most[:, core].astype(np.int32)
            room = self.within.high * (1 + _ROUNDED)
            _, at_most, jobs = _native.best_content(
                latency, worth[:, core].copy(), most, room, _NODES
            )
            losses += size * at_most
            found |= self._add_content(core, self._trimmed(core, jobs.astype(np.int64)))
        return value, gains * (1 - _ROUNDED) - losses * (1 + _ROUNDED), found

    def _scale(self, worth: Floats, clock: float) -> tuple[float, bool]:
        """What to scale prices by, so that no configuration is worth more than max(1, S); adds the
        best, and says whether they were new.

        Beyond the bus, worth + clock <= S + beyond + clock, which is at most (1 + beyond + clock) S
        only where that is not negative.
        """
        best = self.kinds.best(worth)
        found = False
        for jobs in (best.within_jobs, best.beyond_jobs):
            found |= self._add_configuration(
                jobs[jobs >= 0].astype(np.int64), self.kinds.slot[jobs >= 0]
            )
        excess = max(0.0, best.within) + clock
        if np.isfinite(best.beyond):
            excess = max(excess, 1.0 + max(0.0, best.beyond + clock))
        excess += _ROUNDED * (abs(best.within) + abs(clock) + 1.0)
        return self.kinds.slack / max(excess, _ROUNDED), found

    def _trimmed(self, core: int, jobs: Ints) -> Ints:
        """A content that really fits: a little more room was given than there is, so that the
        shortest jobs may have to go."""
        latency = self.latency[:, core]
        while jobs @ latency > self.within.high:
            there = np.flatnonzero(jobs)
            jobs[there[latency[there].argmin()]] -= 1
        return jobs

    def _held(self) -> Floats:
        """How many jobs of each kind each kind of core holds in the last solution."""
        value = self.solved.values
        result = np.zeros(self.possible.shape)
        for (core, jobs), column in self.contents.items():
            if column < len(value) and value[column] > 0:
                result[:, core] += value[column] * np.array(jobs)
        return result

    def _add_configuration(self, jobs: Ints, cores: Ints) -> bool:
        """A column for jobs that run at once, unless there are none or it is known."""
        running = tuple(sorted(zip(jobs.tolist(), cores.tolist(), strict=True)))
        if not running or running in self._known:
            return False
        self._known.add(running)
        entries, share = {self.clock: 1.0}, 0.0
        for job, core in running:
            row = int(self.run[job, core])
            entries[row] = entries.get(row, 0.0) + 1.0 / float(self.latency[job, core])
            share += float(self.kinds.demand[job, core])
        self._column(max(1.0, share), entries)
        return True

    def _add_content(self, core: int, jobs: Ints) -> bool:
        """A column for what a core holds, unless it is known."""
        key = core, tuple(jobs.tolist())
        if key in self.contents:
            return False
        entries = {int(self.room[core]): -1.0}
        for job in np.flatnonzero(jobs).tolist():
            entries[int(self.run[job, core])] = -float(jobs[job])
            entries[int(self.cover[job])] = float(jobs[job])
            if (job, core) in self.split:
                entries[self.split[job, core]] = float(jobs[job])
        self.contents[key] = self._column(0.0, entries)
        return True

    def _split(self, cell: tuple[int, int]) -> None:
        """A row for how many jobs of a kind a kind of core holds."""
        job, core = cell
        held = {
            column: jobs[job]
            for (kind, jobs), column in self.contents.items()
            if kind == core and jobs[job]
        }
        self.split[cell] = int(self.program.rows(0.0, np.inf)[0])
        columns = np.array(list(held), dtype=np.int64)
        self.program.entries(self.split[cell], columns, np.array(list(held.values())))
        self._column(_DEAR, {self.split[cell]: 1.0})

    def _column(self, cost: float, entries: dict[int, float]) -> int:
        column = int(self.program.columns(cost, 0.0, np.inf)[0])
        self.program.entries(np.array(list(entries)), column, np.array(list(entries.values())))
        return column
