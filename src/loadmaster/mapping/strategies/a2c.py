"""A2C, advantage actor-critic, with an update per mapping; by stable-baselines3."""

from __future__ import annotations

from functools import partial

from loadmaster.mapping.group_search import Strategy
from loadmaster.mapping.strategies.reinforcement import SAMPLES, learn

STRATEGY = Strategy(partial(learn, algorithm="A2C", n_steps=1), lambda group: SAMPLES)
