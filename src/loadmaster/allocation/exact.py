"""Exact: the native branch and bound over canonical packings, until the proof is complete or the nodes are spent."""

from __future__ import annotations

from loadmaster.allocation import native
from loadmaster.allocation.search import Search, Strategy

NODES = 4_000_000
"""Default budget."""


def run(search: Search) -> None:
    """Search from scratch."""
    native.exact(search, NODES if search.deadline is None else -1)


STRATEGY = Strategy("exact", native.HONOURS, run)
