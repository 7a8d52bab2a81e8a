"""Replays decisions event by event: cores and copy engine in order, links shared. What the planner optimises against."""

from loadmaster.simulate.replay import Timeline, replay

__all__ = ["Timeline", "replay"]
