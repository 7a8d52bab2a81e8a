"""Exact: the native branch and bound over canonical packings, until the proof is complete or the nodes are spent."""

from __future__ import annotations

from loadmaster.allocation import native
from loadmaster.allocation.search import Search, Strategy

NODES = 4_000_000
"""Default budget."""
_NODES_WITH_WINDOWS = 20_000
"""The same where the search cannot complete a proof."""
_GLANCE = 10_000


def run(search: Search) -> None:
    """Search from scratch, or from the best so far."""
    budget = _NODES_WITH_WINDOWS if "windows" in search.problem.features else NODES
    native.exact(search, budget if search.deadline is None else -1)


def glance(search: Search) -> None:
    """Search for some ten milliseconds, which settles most problems."""
    native.exact(search, _GLANCE)


STRATEGY = Strategy("exact", native.HONOURS, run)
