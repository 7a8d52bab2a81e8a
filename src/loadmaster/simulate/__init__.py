"""Replays decisions event by event: cores and copy engine in order, links shared. What the planner optimises against."""

from loadmaster.simulate.replay import replay

__all__ = ["replay"]
