"""The best way to cut is searched for longer than those beside it, most of all several networks or
mini-batches."""

from __future__ import annotations

from loadmaster.planning.decisions import Solution
from loadmaster.planning.retile import retiled
from loadmaster.planning.workload_planner import WorkloadPlanner

_TIMES, _TIMES_ALONE = 4, 2
"""Times as many rounds as every way to cut has, for several networks or mini-batches, and for one,
which gains next to nothing by more."""
_MOST_JOBS, _MOST_JOBS_ALONE = 20_000, 5_000
"""Jobs in all these rounds together, those of one order counted for each: more take long beside all
else that is planned."""


def searched_on(
    begun: WorkloadPlanner, first: Solution, planner: WorkloadPlanner, solution: Solution
) -> tuple[WorkloadPlanner, Solution]:
    """A plan no worse, and its planner, by a joint search of several times as many rounds as the
    one that ``begun`` found the ``first`` by.

    If that finds a better one, tilings are chosen for it anew. Very many jobs are left as they are.
    """
    alone = sum(network.mini_batches for network in begun.workload.networks) == 1
    rounds = begun.rounds * (_TIMES_ALONE if alone else _TIMES)
    if (
        rounds * len(begun.workload.jobs) > (_MOST_JOBS_ALONE if alone else _MOST_JOBS)
        or planner.is_late()
    ):
        return planner, solution
    longer = begun.longer(rounds)
    planner.interrupted |= begun.interrupted
    if longer is None or begun.score_of(longer) >= begun.score_of(first):
        return planner, solution
    heir, found = retiled(begun, longer)
    planner.interrupted |= heir.interrupted
    return (
        (heir, found) if heir.score_of(found) < planner.score_of(solution) else (planner, solution)
    )
