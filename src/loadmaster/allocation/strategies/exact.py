"""Exact: the native branch and bound over canonical packings, until the proof is complete or the nodes are spent."""

from __future__ import annotations

from loadmaster.allocation import native
from loadmaster.allocation.search_state import Search, Strategy

NODES = 4_000_000
"""Default budget for up to ``_MANY`` buffers. A node of larger sets takes longer, and searching them through is hopeless: they get less."""
_MANY = 450
_NODES_WITHOUT_PROOF = 20_000
"""The same where windows leave low bytes free, so that the search cannot complete a proof."""
_GLANCE = 10_000


def run(search: Search) -> None:
    """Search from scratch, or from the best so far."""
    budget = NODES if native.orderly(search.problem) else _NODES_WITHOUT_PROOF
    budget = int(budget * min(1.0, _MANY / max(1, len(search.problem))) ** 1.5)
    native.exact(search, -(-budget // search.share) if search.deadline is None else -1)


def glance(search: Search) -> None:
    """Search for some ten milliseconds, which settles most problems."""
    native.exact(search, _GLANCE)


STRATEGY = Strategy(native.HONOURS, run)
