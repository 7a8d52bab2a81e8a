"""Strategies that map groups; :mod:`loadmaster.mapping.strategies.registry` knows them by name."""
