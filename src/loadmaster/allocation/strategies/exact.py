"""Exact: the native branch and bound over canonical packings, until the proof is complete or the
nodes are spent."""

from __future__ import annotations

from loadmaster.allocation import native
from loadmaster.allocation.search_state import Search, Strategy


def run(search: Search) -> None:
    """Search from scratch."""
    native.run(search, "exact")


STRATEGY = Strategy(native.HONOURS, run)
