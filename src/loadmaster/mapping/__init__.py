"""Which core runs each job, in which order.

Jobs that run at once share each memory's link as in M3E (HPCA 2022): if their demands sum to S times what the link has, each
that uses it progresses at 1/S of full speed.
"""

from loadmaster.mapping.bounds import makespan_bound
from loadmaster.mapping.goal_bounds import goal_bounds
from loadmaster.mapping.search import map_jobs

__all__ = ["goal_bounds", "makespan_bound", "map_jobs"]
