"""Exact: the native branch and bound over canonical packings, until the proof is complete or the nodes are spent."""

from __future__ import annotations

from loadmaster.allocation import native
from loadmaster.allocation.search_state import Search, Strategy

NODES = 4_000_000
"""Nodes of the search, by default, for up to ``_FULL_BUDGET_BUFFERS`` buffers.

A node of a larger set takes longer, and larger sets are rarely searched through, so that they get fewer nodes.
"""
_FULL_BUDGET_BUFFERS = 450
"""Buffers up to which the search has its full budget of nodes."""
_NODES_WITHOUT_PROOF = 20_000
"""Nodes by default where windows leave low bytes free, so that the search cannot complete a proof."""
_SHORT_NODES = 10_000
"""Nodes of the short search: some ten milliseconds."""


def run(search: Search) -> None:
    """Search from scratch, or from the best so far."""
    budget = NODES if native.orderly(search.problem) else _NODES_WITHOUT_PROOF
    budget = int(budget * min(1.0, _FULL_BUDGET_BUFFERS / max(1, len(search.problem))) ** 1.5)
    native.exact(search, -(-budget // search.budget_divisor) if not search.deadline.is_set else -1)


def run_short(search: Search) -> None:
    """Search with few nodes, which settles most problems in some ten milliseconds."""
    native.exact(search, _SHORT_NODES)


STRATEGY = Strategy(native.HONOURS, run)
