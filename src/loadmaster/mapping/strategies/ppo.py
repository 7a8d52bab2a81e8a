"""PPO, proximal policy optimisation, by stable-baselines3."""

from __future__ import annotations

from functools import partial

from loadmaster.mapping.group_search import MappingStrategy
from loadmaster.mapping.strategies.reinforcement import SAMPLES, learn

_EPISODES = 16
"""Mappings between updates of the policy."""

STRATEGY = MappingStrategy(
    partial(learn, algorithm="PPO", n_steps=_EPISODES, batch_size=4), lambda group: SAMPLES
)
