"""Strategies that pack one memory, one a file; :mod:`loadmaster.allocation.strategies.registry`
finds them by name."""
