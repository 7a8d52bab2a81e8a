"""Replays decisions event by event: what the planner and the placer optimise against."""

from loadmaster.simulate.movement import replay_moves
from loadmaster.simulate.replay import replay

__all__ = ["replay", "replay_moves"]
