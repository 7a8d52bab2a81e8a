"""A2C, advantage actor-critic, with an update per mapping; by stable-baselines3."""

from __future__ import annotations

from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies.reinforcement import SAMPLES, learn


def run(search: Search) -> None:
    """Learn until the search is done."""
    learn(search, "A2C", "a2c", n_steps=search.group.jobs)


STRATEGY = Strategy(run, lambda group: SAMPLES)
