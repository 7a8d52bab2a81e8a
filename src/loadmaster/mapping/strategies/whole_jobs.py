"""Cores for jobs by an integer program: the linear program of the bound, in which jobs are whole.

Annealing moves a job or two at a time. Where many have to move at once for any to be worth it, to
the core that wants little bandwidth and takes long, say, which pays only if all cores then take as
long, it stays where it is; the program does not.
"""

from __future__ import annotations

import numpy as np

from loadmaster.core.arrays import Floats, Ints, distinct_rows
from loadmaster.core.deadline import Deadline
from loadmaster.core.packages import package
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
    rows = np.hstack(
        [np.where(group.allowed, group.latency, -1.0), np.where(group.allowed, group.demand, 0.0)]
    )
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
    highspy = package("highspy", "strategy 'auto'")

    kinds, cores = own.shape
    cells = np.arange(1, kinds * cores + 1, dtype=np.int32)
    solver, infinity = highspy.Highs(), highspy.kHighsInf
    solver.silent()
    options = (
        ("threads", 1),
        ("random_seed", 0),
        ("mip_rel_gap", _GAP),
        ("mip_max_nodes", _NODES),
        ("time_limit", deadline.left()),
    )
    for name, value in options:
        solver.setOptionValue(name, value)
    # Nothing worse than the known mapping is looked for.
    solver.addVar(0.0, 1.0)
    solver.changeColCost(0, 1.0)
    solver.addVars(len(cells), np.zeros(len(cells)), most.reshape(-1).astype(np.float64))
    solver.changeColsIntegrality(
        len(cells), cells, np.full(len(cells), highspy.HighsVarType.kInteger)
    )
    for number, jobs in enumerate(count.tolist()):
        solver.addRow(
            float(jobs),
            float(jobs),
            cores,
            cells[number * cores : (number + 1) * cores],
            np.ones(cores),
        )
    for core in (*range(cores), None):
        use = bus if core is None else others + own * (np.arange(cores) == core)
        solver.addRow(
            0.0,
            infinity,
            len(cells) + 1,
            np.append(np.int32(0), cells),
            np.append(1.0, -use.reshape(-1)),
        )
    solver.run()
    if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    shares: Ints = np.rint(np.array(solver.getSolution().col_value)[cells]).astype(np.int64)
    return shares.reshape(kinds, cores)
