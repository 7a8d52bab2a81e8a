"""Lower bounds of a group's mappings: a linear program over cores and bandwidth, with branch and
bound on the cores of the longest jobs.

The program divides jobs freely among cores; every core and the bus have the makespan T. All running
jobs slow down alike by max(1, S) >= 1 + sum of (demand - 1)+. So on core ``c``, T covers its own
jobs and the waiting that jobs of all cores cause:

    sum_j x[j,c] l[j,c]  +  sum_{j,k} x[j,k] l[j,k] (b[j,k] - 1)+  <=  T,        sum_{j,k} x[j,k]
    l[j,k] b[j,k]  <=  T

If jobs demand no bandwidth (always so under the even split), they do not slow down, and a core's
own jobs count l max(1, b) instead. The program lets a job run on several cores at once, which makes
it weak for few long jobs. So it is solved again for each core that the longest job can take, and so
on: branch and bound, whose least open bound holds for all mappings.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask, distinct_rows
from loadmaster.core.linear_program import LinearProgram
from loadmaster.core.progress import NO_DEADLINE, Deadline
from loadmaster.mapping.bounds.configurations import configuration_bound
from loadmaster.mapping.group import Group, Queues

_CUTS, _NODE_CUTS = 60, 10
"""Most cutting planes of the linear program, and of those of branch and bound, which begin with
multipliers that are nearly the best: there are many of these programs."""
_WIDE = 8.0
"""Radius from which on the box around the best multipliers is no restriction."""
_CLOSE = 1e-5
"""Relative difference between the program's value and the bound at which cutting planes end."""
_BRANCHED = 4_000
"""Most jobs x kinds of cores for branch and bound."""
_NODES, _PATIENCE = 60, 30
"""Most nodes of branch and bound, about three milliseconds each, and most without progress."""
_RISE = 0.02
"""Share of the gap that the bound must rise by to count as progress."""
_COUNTED = 2_000_000
"""Most jobs x cores x values of k that the counting bound looks at."""


@dataclass(frozen=True)
class GroupBound:
    """Lower bounds of a group: ``makespan`` in seconds, ``energy`` in joules (0 if not known) and
    ``score``; ``limit`` names the argument."""

    makespan: float
    energy: float
    score: float
    limit: str
    preference: Floats
    """Cost of each job on each core at the program's multipliers, shape (jobs, cores), for
    rounding."""
    core: Ints | None = None
    """Core of each job in the rounded program over configurations; None if it was not solved."""

    def raised(self, group: Group, makespan: float, limit: str) -> GroupBound:
        """Raise the makespan's bound to a proven value, if that is higher."""
        if makespan <= self.makespan:
            return self
        score = group.score(makespan, self.energy)
        return replace(self, makespan=makespan, score=score, limit=limit)


def group_bound(group: Group) -> GroupBound:
    """Bound by the linear program alone. Sound whatever the solver answers, because only its
    multipliers are used. O(jobs x cores)."""
    program = _DualProgram(group)
    return program.bound(
        "work and bandwidth",
        (program.longest(group.alone), "longest job"),
        (program.counted(), "number of long jobs"),
    )


def divided_bound(group: Group, divides: Mask) -> GroupBound:
    """Bound by the program for jobs that may be divided: a share of such a job takes at least that
    share of its latency and bytes.

    Pieces of a job may run side by side, so only indivisible jobs count as long. Pieces may demand
    less bandwidth than the job, so no slow-down is counted. O(jobs x cores).
    """
    program = _DualProgram(group, alone=True)
    return program.bound(
        "work and bandwidth, however jobs are divided",
        (program.longest(group.alone[~divides]), "longest job"),
        (program.least_sum(program.bus), "bandwidth"),
    )


def tightened(
    group: Group, bound: GroupBound, queues: Queues, deadline: Deadline = NO_DEADLINE
) -> GroupBound:
    """Tighten a bound: by the program over configurations (:mod:`.configurations`), then by branch
    and bound on the cores of the longest jobs.

    ``queues`` is a known mapping, whose makespan is the most that a bound can reach.
    """
    goal = float(group.makespans(queues)[0])
    if (found := configuration_bound(group, queues, goal, deadline)) is not None:
        bound = replace(bound, core=found.core)
        bound = bound.raised(group, found.makespan, "what cores can run at once")
    program = _DualProgram(group.within(goal))
    value, price, weights = program.solve((), goal)
    if (value := min(goal, value)) > bound.makespan:
        bound = replace(bound.raised(group, value, "work and bandwidth"), preference=price)
    if bound.makespan >= goal or group.jobs * (len(program.kinds) + 4) > _BRANCHED:
        return bound
    return _split(program, bound, weights, goal, deadline)


def _split(
    program: _DualProgram, bound: GroupBound, weights: Floats, goal: float, deadline: Deadline
) -> GroupBound:
    """Branch on the cores of the longest jobs, the least bound first, while the bound rises;
    multipliers begin with those of the node before, first ``weights``."""
    group = program.group
    order = program.order.tolist()
    # (Bound, tie-breaker that prefers deeper nodes, cores of the first jobs of ``order``, price of
    # every job on every core, multipliers).
    leaves: list[tuple[float, int, tuple[int, ...], Floats, Floats]] = [
        (bound.makespan, 0, (), bound.preference, weights)
    ]
    made, risen, reached = 0, 0, bound.makespan
    while made < _NODES and made - risen < _PATIENCE and leaves[0][0] < goal:
        value, _, fixed, _, weights = leaves[0]
        if len(fixed) == group.jobs or deadline.passed():
            break
        heapq.heappop(leaves)
        for core in program.choices(fixed, order[len(fixed)]):
            made += 1
            own, price, changed = program.solve((*fixed, core), goal, weights)
            heapq.heappush(leaves, (max(value, own), -made, (*fixed, core), price, changed))
        if leaves[0][0] - reached > _RISE * (goal - reached):
            reached, risen = leaves[0][0], made
    value, _, _, price, _ = leaves[0]
    raised = bound.raised(
        group, min(goal, value), "work and bandwidth, for every core of the longest jobs"
    )
    return replace(raised, preference=price)


class _DualProgram:
    """The dual program: multipliers of the cores and of the bus that sum to one; every job goes to
    the core where it then costs least.

    Equal cores without fixed jobs share a multiplier, so there are few variables. ``alone``: jobs
    do not slow each other down.
    """

    def __init__(self, group: Group, *, alone: bool = False) -> None:
        self.group = group
        cores = np.vstack([np.where(group.allowed, group.latency, -1.0), group.usable_demand]).T
        _, alike, _ = distinct_rows(cores)
        self.kinds = [np.flatnonzero(alike == kind).tolist() for kind in range(alike.max() + 1)]
        # Relative error of sums and products of non-negative floats.
        self.slack = 1.0 - (group.jobs + group.cores + 50) * 2.0**-52
        self.order = np.argsort(-group.alone.min(axis=1), kind="stable")
        # Seconds of every job on every core: on the core itself, on all cores because it slows
        # them down, and on the bus; 0 where the job cannot run.
        self.own, asked = group.busy, group.usable_demand
        self.bus = self.own * asked
        self.others = np.zeros_like(self.own)
        if group.every_job_uses_bandwidth and not alone:
            self.others = self.own * np.maximum(0.0, asked - 1.0)
        else:
            self.own = self.own * np.maximum(1.0, asked)

    def bound(self, work: str, *others: tuple[float, str]) -> GroupBound:
        """The bound of the program, named ``work``, or the best of the others if that is
        higher."""
        group, (value, price, _) = self.group, self.solve((), np.inf)
        energy = 0.0 if group.energy is None else self.least_sum(group.energy)
        makespan, limit = max((value, work), *others)
        return GroupBound(makespan, energy, group.score(makespan, energy), limit, price)

    def longest(self, alone: Floats) -> float:
        """Lower bound of the longest job's time on its fastest core."""
        return float(alone.min(axis=1).max(initial=0.0)) * self.slack

    def least_sum(self, costs: Floats) -> float:
        """Lower bound of the sum of all jobs' costs, each on its cheapest core."""
        return float(np.where(self.group.allowed, costs, np.inf).min(axis=1).sum()) * self.slack

    def counted(self) -> float:
        """The counting bound: the least time in which the k longest jobs fit on the cores, for the
        worst k.

        In time T a core holds at most as many of them as fit if the shortest come first: the bound
        is the k-th smallest of all sums of the i shortest on a core. For up to 128 values of k,
        fewer in large groups.
        """
        most = int(np.clip(_COUNTED // self.group.latency.size, 4, 128))
        counts = np.unique(np.linspace(1, self.group.jobs, most).astype(np.int64))
        own, best = np.where(self.group.allowed, self.own, np.inf), 0.0
        for count in counts.tolist():
            lengths = np.sort(own[self.order[:count]], axis=0)
            sums = np.cumsum(lengths, axis=0).reshape(-1)
            best = max(best, float(np.partition(sums, count - 1)[count - 1]))
        return best * self.slack

    def choices(self, fixed: tuple[int, ...], job: int) -> list[int]:
        """Cores to branch on for one more job; of equal cores without fixed jobs only one."""
        cores = (members[0] for members in self._classes(fixed))
        return [core for core in cores if self.group.allowed[job, core]]

    def _classes(self, fixed: tuple[int, ...]) -> list[list[int]]:
        """Return the cores that share a multiplier: each with fixed jobs alone, then those of each
        kind without."""
        free = ([core for core in members if core not in fixed] for members in self.kinds)
        return [[core] for core in sorted(set(fixed))] + list(filter(None, free))

    def solve(
        self, fixed: tuple[int, ...], goal: float, start: Floats | None = None
    ) -> tuple[float, Floats, Floats]:
        """Maximise the bound over multipliers by cutting planes (Kelley, 1960), with the first jobs
        of ``order`` on ``fixed`` cores.

        Each assignment of jobs to cores is a cut. ``start``: multipliers to begin with. Returns the
        best bound, the cost of every job on every core behind it, and the multipliers of each core
        and of the bus.
        """
        classes = self._classes(fixed)
        columns = np.array([members[0] for members in classes])
        size = np.array([len(members) for members in classes], dtype=np.float64)
        own = self.own[:, columns]
        others = self.others[:, columns]
        bus = self.bus[:, columns]
        allowed = self.group.allowed[:, columns].copy()
        for job, core in zip(self.order, fixed, strict=False):
            allowed[job] = columns == core
        forbidden = np.where(allowed, 0.0, np.inf)
        rows, variables = np.arange(self.group.jobs), len(classes) + 1
        program = LinearProgram("the bound of a mapping")
        shares = program.columns(np.zeros(variables))
        level = program.columns(-1.0, -np.inf, np.inf)
        program.entries(program.rows(1.0, 1.0), shares, np.append(size, 1.0))
        scale = max(self.bus.max(), self.own.max()) * self.group.jobs or 1.0
        best = 0.0
        price = np.where(allowed, own, np.inf)
        # First from the start or with all alike; then within a box around the best, which keeps
        # steps short.
        centre = weights = (
            np.full(variables, 1.0 / (self.group.cores + 1))
            if start is None
            else start[[*columns, -1]]
        )
        radius = 1.0
        for cut in range(_CUTS if start is None else _NODE_CUTS):
            if cut:
                low = centre / (1 + radius)
                high = np.minimum(1.0, centre * (1 + radius) + radius / variables)
                program.bound_columns(shares, low * (radius < _WIDE), high)
                solution = program.solve().values
                if solution[variables] * scale <= best * (1 + _CLOSE):
                    if radius >= _WIDE:
                        break
                    radius *= 4
                    continue
                weights = np.clip(solution[:variables], 0.0, 1.0)
            cores = float(weights[:-1] @ size)
            cost = own * weights[:-1] + others * cores + bus * weights[-1] + forbidden
            choice = cost.argmin(axis=1)
            value = float(cost[rows, choice].sum()) / max(cores + weights[-1], 1e-300) * self.slack
            radius *= 1.5 if value > best else 0.6
            if value > best:
                best, price, centre = value, cost, weights
            if best >= goal:
                break
            waits = float(others[rows, choice].sum())
            use = np.append(
                np.bincount(choice, own[rows, choice], len(size)) + size * waits,
                bus[rows, choice].sum(),
            )
            program.entries(program.rows(-np.inf, 0.0, (level, 1.0)), shares, -use / scale)
        # Equal cores have equal costs and multipliers.
        kind = np.zeros(self.group.cores, dtype=int)
        for number, members in enumerate(classes):
            kind[members] = number
        return best, price[:, kind], centre[[*kind, -1]]
