"""Lists strategies, cost models and frontends by name, each with a sentence."""

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
    """Return the strategies, cost models or frontends that can be chosen by name.

    Parameters
    ----------
    kind : str
        ``"allocate"``, ``"map"`` or ``"place"``: values of the argument ``strategy`` of the
        function of that name (:func:`loadmaster.map_jobs` for ``"map"``). ``"cost"``: cost models
        of jobs. ``"load"``: kinds of networks, the prefixes of ``KIND:...``.

    Returns
    -------
    dict
        A sentence on each by name.

    Raises
    ------
    LoadmasterError
        For another kind.
    """
    require_known("kind of strategies", kind, _KINDS, LoadmasterError)
    return _KINDS[kind]()
