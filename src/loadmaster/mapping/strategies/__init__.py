"""Strategies that map groups, one a file; :mod:`loadmaster.mapping.strategies.registry` knows them by name."""
