"""Rewrites a problem with aliases, conflicts, reserved ranges or in-place pairs as one that every
strategy can pack."""
