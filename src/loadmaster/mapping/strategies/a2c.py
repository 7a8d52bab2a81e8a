"""A2C, advantage actor-critic, with an update per mapping; by stable-baselines3."""

from __future__ import annotations

from functools import partial

from loadmaster.mapping.group_search import MappingStrategy
from loadmaster.mapping.strategies.reinforcement import SAMPLES, learn

STRATEGY = MappingStrategy(partial(learn, algorithm="A2C", n_steps=1), lambda group: SAMPLES)
