"""What can be asked for by name, with a sentence on each: strategies, cost models, frontends."""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.allocation.strategies.registry import STRATEGIES as ALLOCATING
from loadmaster.core.arguments import require_known
from loadmaster.core.errors import LoadmasterError
from loadmaster.cost.registry import COST_MODELS
from loadmaster.mapping.strategies.registry import STRATEGIES as MAPPING
from loadmaster.placement.strategies.registry import strategy_summaries
from loadmaster.workloads.frontends.frontend import FRONTENDS

_KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "allocate": ALLOCATING.summaries,
    "map": MAPPING.summaries,
    "place": strategy_summaries,
    "cost": COST_MODELS.summaries,
    "load": FRONTENDS.summaries,
}


def strategies(kind: str) -> dict[str, str]:
    """List what can be asked for by name.

    Parameters
    ----------
    kind : str
        ``"allocate"``, ``"map"`` or ``"place"``: what the function of that name
        (:func:`loadmaster.map_jobs` for ``"map"``) takes as ``strategy``. ``"cost"``: cost models
        of jobs. ``"load"``: kinds of networks, by what ``KIND:...`` begins with.

    Returns
    -------
    dict
        A sentence on each, by name.

    Raises
    ------
    LoadmasterError
        For another kind.
    """
    require_known("kind of strategies", kind, _KINDS, LoadmasterError)
    return _KINDS[kind]()
