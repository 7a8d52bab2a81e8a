"""Runs plans: every tensor at its planned address, against the whole model run in one go."""
