"""Cores for jobs by an integer program: the linear program of the bound, in which jobs are whole.

Annealing moves a job or two at a time. Where many have to move at once for any to be worth it, to
the core that wants little bandwidth and takes long, say, which pays only if all cores then take as
long, it stays where it is; the program does not.
"""

from __future__ import annotations

import numpy as np

from loadmaster.core.arrays import Floats, Ints, distinct_rows
from loadmaster.core.linear_program import LinearProgram
from loadmaster.core.progress import Deadline
from loadmaster.mapping.bounds.group_bounds import loads
from loadmaster.mapping.group import Group

_CELLS = 1_000
"""Kinds of jobs times cores up to which the program is solved."""
_NODES = 30
"""Nodes of branch and bound, half a second or less in all."""
_GAP = 1e-3
"""Relative distance from the program's own bound that is good enough."""


def whole_jobs(group: Group, makespan: float, deadline: Deadline) -> Ints | None:
    """Core of every job by the program; None where it is too large, or finds nothing better than
    ``makespan``.

    Cores have the makespan for their own jobs and what every job makes them wait, the bus has it
    for all traffic. Jobs that are alike share a variable for each core. The program knows no order,
    so that a mapping takes longer than its value.
    """
    rows = np.hstack([np.where(group.allowed, group.latency, -1.0), group.asked])
    _, kind, count = distinct_rows(rows)
    if len(count) * group.cores > _CELLS:
        return None
    first = np.unique(kind, return_index=True)[1]
    own, others, bus = (table[first] / makespan for table in loads(group))
    most = np.where(group.allowed[first] & (own <= 1.0), count[:, None], 0)
    found = _solved(own, others, bus, most, count, deadline)
    if found is None:
        return None
    core = np.empty(group.jobs, dtype=np.int64)
    for number, shares in enumerate(found):
        core[kind == number] = np.repeat(np.arange(group.cores), shares)
    return core


def _solved(
    own: Floats, others: Floats, bus: Floats, most: Ints, count: Ints, deadline: Deadline
) -> Ints | None:
    """How many jobs of each kind each core has, shape (kinds, cores), for the least longest of all
    cores and the bus."""
    kinds, cores = own.shape
    program = LinearProgram("strategy 'auto'")
    # Nothing worse than the known mapping is looked for.
    longest = program.columns(1.0)
    cells = program.columns(np.zeros(most.size), 0.0, most.reshape(-1))
    program.entries(np.repeat(program.rows(count, count), cores), cells, 1.0)
    for core in (*range(cores), None):
        use = bus if core is None else others + own * (np.arange(cores) == core)
        program.entries(program.rows(0.0, np.inf, (longest, 1.0)), cells, -use.reshape(-1))
    values = program.solve(deadline, cells, _GAP, _NODES).values
    if not len(values):
        return None
    shares: Ints = np.rint(values[cells]).astype(np.int64)
    return shares.reshape(kinds, cores)
