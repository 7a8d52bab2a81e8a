"""Strategies that map groups, one a file; :mod:`loadmaster.mapping.strategies.registry` finds them
by name."""
