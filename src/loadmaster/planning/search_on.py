"""Where there are most orders to choose from, for several networks, the best way to cut is searched for longer than those beside it."""

from __future__ import annotations

from loadmaster.planning.decisions import Solution
from loadmaster.planning.retile import retiled
from loadmaster.planning.workload_planner import WorkloadPlanner

_TIMES = 4
"""Times as many rounds as every way to cut has: a single network gains next to nothing by more."""
_MOST_JOBS = 20_000
"""Jobs in all these rounds together, those of one order counted for each: more take long beside all else that is planned."""


def searched_on(begun: WorkloadPlanner, first: Solution, planner: WorkloadPlanner, solution: Solution) -> tuple[WorkloadPlanner, Solution]:
    """A plan no worse, and its planner, by a joint search of several times as many rounds as the one that ``begun`` found the ``first`` by.

    If that finds a better one, tilings are chosen for it anew. A single network is left as it is, and so are very many jobs.
    """
    rounds, workload = _TIMES * begun.rounds, begun.workload
    if len(workload.networks) < 2 or rounds * len(workload.jobs) > _MOST_JOBS or planner.is_late():
        return planner, solution
    longer = begun.longer(rounds)
    planner.interrupted |= begun.interrupted
    if longer is None or begun.score_of(longer) >= begun.score_of(first):
        return planner, solution
    heir, found = retiled(begun, longer)
    planner.interrupted |= heir.interrupted
    return (heir, found) if heir.score_of(found) < planner.score_of(solution) else (planner, solution)
