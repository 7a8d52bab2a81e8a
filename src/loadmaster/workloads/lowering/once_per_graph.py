"""Remembers what is worked out of a graph: ways to cut a network are lowered one after the other, all from the same graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from loadmaster.workloads.graph import Graph

Result = TypeVar("Result")


def once_per_graph(function: Callable[[Graph], Result]) -> Callable[[Graph], Result]:
    """Have a graph keep what a function finds for it, which nobody may change. It goes with the graph, and copies of that have none."""
    name = f"_{function.__module__}.{function.__name__}"

    @wraps(function)
    def remembered(graph: Graph) -> Result:
        known = vars(graph)
        if name not in known:
            known[name] = function(graph)
        found: Result = known[name]
        return found

    return remembered
