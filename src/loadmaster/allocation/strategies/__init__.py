"""Strategies that pack one memory, one a file; :mod:`loadmaster.allocation.strategies.registry` knows them by name."""
