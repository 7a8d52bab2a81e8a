"""Where orders matter most, for several networks or mini-batches, the best way to cut is searched for longer than those beside it."""

from __future__ import annotations

from loadmaster.planning.decisions import Solution
from loadmaster.planning.retile import retiled
from loadmaster.planning.workload_planner import WorkloadPlanner

_TIMES_SEVERAL, _TIMES_ONE = 4, 2
"""Times as many rounds as every way to cut has, for several networks, of which more can be changed, and for one."""
_MOST_JOBS = 20_000
"""Jobs in all these rounds together, those of one order counted for each: more take long beside all else that is planned."""


def searched_on(begun: WorkloadPlanner, first: Solution, planner: WorkloadPlanner, solution: Solution) -> tuple[WorkloadPlanner, Solution]:
    """A plan no worse, and its planner, by a joint search of several times as many rounds as the one that ``begun`` found the ``first`` by.

    If that finds a better one, tilings are chosen for it anew. A single network for one mini-batch is left as it is: what is gained there
    is gained by how it is cut. So are so many jobs that there would be few rounds more.
    """
    networks, jobs = begun.workload.networks, max(1, len(begun.workload.jobs))
    if sum(network.mini_batches for network in networks) <= 1:
        return planner, solution
    rounds = min((_TIMES_SEVERAL if len(networks) > 1 else _TIMES_ONE) * begun.rounds, _MOST_JOBS // jobs)
    if rounds < _TIMES_ONE * begun.rounds or planner.is_late():
        return planner, solution
    longer = begun.longer(rounds)
    planner.interrupted |= begun.interrupted
    if longer is None or begun.score_of(longer) >= begun.score_of(first):
        return planner, solution
    heir, found = retiled(begun, longer)
    planner.interrupted |= heir.interrupted
    return (heir, found) if heir.score_of(found) < planner.score_of(solution) else (planner, solution)
