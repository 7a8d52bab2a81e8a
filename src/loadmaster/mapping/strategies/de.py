"""Differential evolution, DE/rand/1/bin, by the pymoo library."""

from __future__ import annotations

from functools import partial

from loadmaster.mapping.group_search import MappingStrategy
from loadmaster.mapping.strategies.pymoo_search import minimise

STRATEGY = MappingStrategy(partial(minimise, algorithm="DE"))
