"""Core, order, residency and transfers together: what is read once, kept on chip, and fetched ahead."""

from loadmaster.joint.problem import JointProblem
from loadmaster.joint.search import Found, JointSearch

__all__ = ["Found", "JointProblem", "JointSearch"]
