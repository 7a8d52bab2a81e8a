"""PPO, proximal policy optimisation, by stable-baselines3."""

from __future__ import annotations

from loadmaster.mapping.group_search import Search, Strategy
from loadmaster.mapping.strategies.reinforcement import SAMPLES, learn

_EPISODES = 16
"""Mappings between updates of the policy."""


def run(search: Search) -> None:
    """Learn until the search is done."""
    learn(
        search,
        "PPO",
        "ppo",
        n_steps=_EPISODES * search.group.jobs,
        batch_size=search.group.jobs * 4,
    )


STRATEGY = Strategy(run, lambda group: SAMPLES)
