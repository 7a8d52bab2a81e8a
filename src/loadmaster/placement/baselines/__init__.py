"""What others do, simulated on the same kernels, costs and limits: the strategies that a placement has to beat."""

from loadmaster.placement.baselines.registry import NAMES, baseline
from loadmaster.placement.baselines.result import BaselineResult

__all__ = ["NAMES", "BaselineResult", "baseline"]
