"""Cost models by name; each is imported when it is asked for."""

from __future__ import annotations

from loadmaster.core.arguments import instead
from loadmaster.core.errors import JobError
from loadmaster.cost.base import CostModel


def cost_model(name: str) -> CostModel:
    """The analytical model of a name.

    Raises
    ------
    JobError
        If there is none, with the names that there are.
    """
    from loadmaster.cost.models.dataflow import Dataflow
    from loadmaster.cost.models.maestro import Maestro

    models: dict[str, CostModel] = {"dataflow": Dataflow(), "maestro": Maestro()}
    if name not in models:
        raise JobError(f"there is no cost model {name!r}: {instead(name, models, ', or give a .csv file of measured costs')}")
    return models[name]
