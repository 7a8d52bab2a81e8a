"""Changes of a plan of a few jobs: another core or order, a stay more or less, a job that waits so
that another has the link alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.planning.decisions import Copy, Placement, Residence, Schedule, Solution
from loadmaster.workloads.job import Workload

MOST_JOBS = 8
"""Of a plan that is polished: of more there are too many pairs of changes."""


@dataclass(frozen=True)
class Decided:
    """A plan in which a tensor stays once, for all its uses: cores and order of jobs, what is kept
    or fetched, and who waits for whom.

    ``held`` are pairs of jobs: the second starts when the first has ended. ``fetched`` weights and
    inputs are copied one after another.
    """

    core: tuple[int, ...]
    order: tuple[int, ...]
    kept: frozenset[int]
    fetched: tuple[int, ...]
    held: frozenset[tuple[int, int]] = frozenset()

    @staticmethod
    def of(solution: Solution, workload: Workload) -> Decided:
        """What comes nearest to a solution."""
        fetched = dict.fromkeys(copy.tensor for copy in solution.placement.copies if copy.to_fast)
        kept = {
            t
            for t in np.flatnonzero(solution.placement.write_fast).tolist()
            if workload.tensors[t].producer >= 0
        }
        start = solution.timeline.start[: len(workload.jobs)].tolist()
        order = sorted(range(len(workload.jobs)), key=lambda job: (start[job], job))
        return Decided(
            tuple(solution.schedule.core.tolist()), tuple(order), frozenset(kept), tuple(fetched)
        )

    def schedule(self) -> Schedule:
        """The cores and the order."""
        return Schedule(
            np.array(self.core, dtype=np.int32), np.array(self.order, dtype=np.int64), 0, 1
        )

    def placement(self, workload: Workload) -> Placement:
        """Every tensor's stays."""
        jobs, tensors, users = workload.jobs, workload.tensors, workload.readers
        task = {t: len(jobs) + number for number, t in enumerate(self.fetched)}
        inside = np.zeros(len(tensors), dtype=np.bool_)
        inside[[*self.kept, *self.fetched]] = True
        made = np.array([tensor.producer >= 0 for tensor in tensors], dtype=np.bool_)
        output = np.array([tensor.is_output for tensor in tensors], dtype=np.bool_)
        in_main = ~inside | output | ~made
        residences = [
            Residence(t, 1, task.get(t, tensors[t].producer), users[t])
            for t in (*sorted(self.kept), *self.fetched)
        ]
        for t in np.flatnonzero(in_main).tolist():
            there = (task[t],) if t in task else () if inside[t] else users[t]
            residences.append(
                Residence(
                    t,
                    0,
                    tensors[t].producer,
                    there,
                    tensors[t].is_output or tensors[t].kind == "weight",
                )
            )
        copies = tuple(Copy(t, True, (), users[t]) for t in self.fetched)
        return Placement(inside, inside & made, in_main, copies, tuple(residences))

    def waits(self, workload: Workload) -> list[list[int]]:
        """What every job and copy waits for beside its operands."""
        after: list[list[int]] = [[] for _ in range(len(workload.jobs) + len(self.fetched))]
        for before, job in self.held:
            after[job].append(before)
        return after


def neighbours(
    decided: Decided, workload: Workload, cores: int, room: int, fetches: bool
) -> Iterator[Decided]:
    """Plans with one thing changed; ``room`` is the size of the fast memory, and ``fetches``
    whether anything can be copied there."""
    for job, core in itertools.product(range(len(workload.jobs)), range(cores)):
        if decided.core[job] != core:
            yield replace(decided, core=(*decided.core[:job], core, *decided.core[job + 1 :]))
    for t, tensor in enumerate(workload.tensors):
        if 0 < tensor.bytes <= room and tensor.producer >= 0:
            yield replace(decided, kept=decided.kept ^ {t})
        elif 0 < tensor.bytes <= room and fetches:
            gone = tuple(other for other in decided.fetched if other != t)
            yield replace(decided, fetched=gone if t in decided.fetched else (*gone, t))
            yield replace(decided, fetched=(t, *gone))
    for first, second in itertools.permutations(range(len(decided.order)), 2):
        order = list(decided.order)
        order.insert(second, order.pop(first))
        if _in_order(order, workload):
            yield replace(decided, order=tuple(order))
    for before, job in itertools.permutations(range(len(workload.jobs)), 2):
        if decided.order.index(before) < decided.order.index(job):
            yield replace(decided, held=decided.held ^ {(before, job)})


def _in_order(order: Sequence[int], workload: Workload) -> bool:
    position = {job: at for at, job in enumerate(order)}
    return all(
        position[before] < position[job]
        for job, record in enumerate(workload.jobs)
        for before in record.after
    )
