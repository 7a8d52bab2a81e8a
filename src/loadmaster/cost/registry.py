"""Cost models by name, each from its file; see :class:`loadmaster.core.registry.Registry`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.core.errors import JobError
from loadmaster.core.registry import Registry

if TYPE_CHECKING:
    from loadmaster.cost.base import CostModel

COST_MODELS: Registry[CostModel] = Registry(
    "loadmaster.cost.models",
    "MODEL",
    "cost model",
    JobError,
    ", or give a .csv file of measured costs",
)

DEFAULT = "dataflow"
"""The cost model of those who name none."""
